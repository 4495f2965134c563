/* What the example needs of its board. */
#ifndef FREESTANDING_STARTUP_H
#define FREESTANDING_STARTUP_H

#include <stdint.h>

/* The program; returns 0 for success. */
int start(void);

__attribute__((noreturn)) void console_exit(uint32_t code);

/* Text to the emulator's console. */
void console_text(const char *text);
void console_number(uint32_t number);

/* Bytes of stack used so far, at most. */
uint32_t stack_used(void);

#endif
