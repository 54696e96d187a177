// SPDX-License-Identifier: Apache-2.0
// RV32 in qemu-system-riscv32: start-up, semihosting, and the counter of retired instructions.
#include "platform.h"

#include <stddef.h>

int main(void);

static uint64_t started, instructions;

__attribute__((section(".start"), naked, used)) void start(void) {
  __asm__ volatile(
      ".option push\n.option norelax\nla gp, __global_pointer$\n.option pop\n"
      "la sp, stack_top\n"
      "la t0, bss_start\nla t1, bss_end\n"
      "1: bgeu t0, t1, 2f\nsw zero, 0(t0)\naddi t0, t0, 4\nj 1b\n"
      "2: jal main\n3: j 3b\n");
}

// The three instructions that mark a semihosting call have to lie in one page.
__attribute__((naked, noinline, aligned(16))) static uintptr_t semihost(uintptr_t operation,
                                                                        const void* argument) {
  (void)operation;
  (void)argument;
  __asm__ volatile(
      ".option push\n.option norvc\nslli x0, x0, 0x1f\nebreak\nsrai x0, x0, 7\nret\n.option pop\n");
}

static char line[256];
static size_t length;

static void flush(void) {
  line[length] = 0;
  semihost(0x04, line);  // SYS_WRITE0
  length = 0;
}

void platform_put(char character) {
  line[length++] = character;
  if (length == sizeof line - 1) {
    flush();
  }
}

void platform_exit(void) {
  static const uintptr_t exited[2] = {0x20026, 0};
  flush();
  semihost(0x20, exited);  // SYS_EXIT_EXTENDED
  for (;;) {
  }
}

static uint64_t now(void) {
  uint32_t high, low, again;
  do {
    __asm__ volatile("csrr %0, minstreth" : "=r"(high));
    __asm__ volatile("csrr %0, minstret" : "=r"(low));
    __asm__ volatile("csrr %0, minstreth" : "=r"(again));
  } while (high != again);
  return (uint64_t)high << 32 | low;
}

void platform_start(void) { started = now(); }
void platform_stop(void) { instructions += now() - started; }
uint64_t platform_count(void) { return instructions; }
