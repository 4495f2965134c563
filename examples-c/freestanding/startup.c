/* Cortex-M start-up and console for an emulator: vectors, floating point on, sections set up, semihosting for text and exit. */
#include "startup.h"

extern uint32_t stack_bottom, stack_top, data_from, data_begin, data_end, bss_begin, bss_end; /* from the linker script */

enum { PAINT = 0x5a5a5a5a };

void reset(void);
static void fault(void);

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    &stack_top,    (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)0,
    (void *)0,     (void *)0,     (void *)0,     (void *)fault, (void *)fault, (void *)0,     (void *)fault, (void *)fault,
};

static uint32_t semihosting(uint32_t call, const void *argument) {
  register uint32_t r0 __asm__("r0") = call;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

void console_text(const char *text) { semihosting(0x04, text); }

void console_number(uint32_t number) {
  char text[12];
  char *p = text + sizeof text;
  *--p = '\0';
  do {
    *--p = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  console_text(p);
}

__attribute__((noreturn)) void console_exit(uint32_t code) {
  const uint32_t block[2] = {0x20026, code}; /* the application ended by itself, with this code */
  semihosting(0x20, block);
  for (;;) {
  }
}

static void fault(void) {
  console_text("fault\n");
  console_exit(2);
}

/* The stack was painted before main; what lost its paint was used. */
uint32_t stack_used(void) {
  const uint32_t *p = &stack_bottom;
  while (p < &stack_top && *p == PAINT) p++;
  return (uint32_t)((const char *)&stack_top - (const char *)p);
}

__attribute__((noreturn, noinline)) static void run(void) { console_exit((uint32_t)start()); }

__attribute__((noreturn)) void reset(void) {
  *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* CPACR: the floating-point unit */
  __asm__ volatile("dsb\n isb" ::: "memory");
  const uint32_t *from = &data_from;
  for (uint32_t *to = &data_begin; to < &data_end; to++) *to = *from++;
  for (uint32_t *to = &bss_begin; to < &bss_end; to++) *to = 0;
  register uint32_t *sp __asm__("sp");
  for (uint32_t *to = &stack_bottom; to < sp - 16; to++) *to = PAINT;
  run();
}
