/* Start-up and console for emulated machines, a Cortex-M and a 64-bit Arm: floating point on, sections set up, stack painted,
 * semihosting for text and exit. */
#include "startup.h"

extern uint32_t stack_bottom, stack_top, bss_begin, bss_end; /* from the linker script */

enum { PAINT = 0x5a5a5a5a };

__attribute__((noreturn)) static void begin(uint32_t *sp);

#if defined(__aarch64__)
/* First of the image: stack, floating point and vector instructions for this level; faults end in the loop of the emulator. */
__asm__(".section .text.first, \"ax\"\n"
        ".global reset\n"
        "reset: ldr x1, =stack_top\n"
        "mov sp, x1\n"
        "mov x0, #(3 << 20)\n"
        "msr cpacr_el1, x0\n"
        "ldr x0, =vectors\n"
        "msr vbar_el1, x0\n"
        "isb\n"
        "mov x0, sp\n"
        "b start_up\n"
        ".balign 2048\n"
        "vectors: .rept 16\n"
        "b fault\n"
        ".balign 128\n"
        ".endr\n");

__attribute__((noreturn, used)) void start_up(uint32_t *sp);
void start_up(uint32_t *sp) { begin(sp); }

/* Memory as memory: without translation all of it counts as device, where vectors must not be loaded from odd addresses.
 * One table, whose entries map a GiB each onto itself: the first as device, the second, where the program is, as memory. */
static void map(void) {
  static _Alignas(4096) uint64_t table[512];
  table[0] = 0x00000000u | 1 << 10 | 1 << 2 | 1; /* accessed, attribute 1, block */
  table[1] = 0x40000000u | 1 << 10 | 3 << 8 | 1; /* accessed, shared, attribute 0, block */
  const uint64_t attributes = 0x00ff;             /* 1: device; 0: memory, cached */
  const uint64_t control = 1u << 23 | 3 << 12 | 1 << 10 | 1 << 8 | 25; /* 39 bits, 4 KiB pages, cached walks, one half */
  uint64_t system;
  __asm__ volatile("msr mair_el1, %0\n msr tcr_el1, %1\n msr ttbr0_el1, %2\n isb\n tlbi vmalle1\n dsb sy\n isb" ::"r"(
                       attributes),
                   "r"(control), "r"(table)
                   : "memory");
  __asm__ volatile("mrs %0, sctlr_el1" : "=r"(system));
  __asm__ volatile("msr sctlr_el1, %0\n isb" ::"r"(system | 1 << 12 | 1 << 2 | 1) : "memory");
}

static uint64_t semihosting(uint64_t call, const void *argument) {
  register uint64_t x0 __asm__("x0") = call;
  register const void *x1 __asm__("x1") = argument;
  __asm__ volatile("hlt 0xf000" : "+r"(x0) : "r"(x1) : "memory");
  return x0;
}
#else
static void map(void) {}

extern uint32_t data_from, data_begin, data_end;
void reset(void);
void fault(void);

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    &stack_top,    (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)0,
    (void *)0,     (void *)0,     (void *)0,     (void *)fault, (void *)fault, (void *)0,     (void *)fault, (void *)fault,
};

__attribute__((noreturn)) void reset(void) {
  uint32_t *sp;
  *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* CPACR: the floating-point unit */
  __asm__ volatile("dsb\n isb" ::: "memory");
  const uint32_t *from = &data_from;
  for (uint32_t *to = &data_begin; to < &data_end; to++) *to = *from++;
  __asm__ volatile("mov %0, sp" : "=r"(sp));
  begin(sp);
}

static uint32_t semihosting(uint32_t call, const void *argument) {
  register uint32_t r0 __asm__("r0") = call;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}
#endif

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
  const uintptr_t block[2] = {0x20026, code}; /* the application ended by itself, with this code */
  semihosting(0x20, block);
  for (;;) {
  }
}

__attribute__((used)) void fault(void);
void fault(void) {
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

static void begin(uint32_t *sp) {
  for (uint32_t *to = &bss_begin; to < &bss_end; to++) *to = 0;
  map();
  for (uint32_t *to = &stack_bottom; to < sp - 16; to++) *to = PAINT;
  run();
}
