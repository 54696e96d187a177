// SPDX-License-Identifier: Apache-2.0
// Cortex-M in qemu-system-arm: vectors, start-up, semihosting, and SysTick as a clock.
//
// With `-icount shift=0` an instruction takes a nanosecond of virtual time, and SysTick counts at
// CLOCK_MHZ: a tick is 1000 / CLOCK_MHZ instructions.
#include "platform.h"

#include <string.h>

#define REGISTER(address) (*(volatile uint32_t*)(address))
#define SYSTICK_CONTROL REGISTER(0xe000e010u)
#define SYSTICK_RELOAD REGISTER(0xe000e014u)
#define SYSTICK_VALUE REGISTER(0xe000e018u)
#define COPROCESSOR_ACCESS REGISTER(0xe000ed88u)
#define SYSTICK_PERIOD 0x1000000u

extern uint32_t stack_top[], data_load[], data_start[], data_end[], bss_start[], bss_end[];

int main(void);

static volatile uint32_t wraps;
static uint64_t started, ticks;

static uintptr_t semihost(uintptr_t operation, const void* argument) {
  register uintptr_t r0 __asm__("r0") = operation;
  register const void* r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
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
  flush();
  semihost(0x18, (const void*)0x20026);  // SYS_EXIT, ADP_Stopped_ApplicationExit
  for (;;) {
  }
}

static uint64_t now(void) {
  uint32_t high, low;
  do {
    high = wraps;
    low = SYSTICK_PERIOD - 1 - SYSTICK_VALUE;
  } while (high != wraps);
  return (uint64_t)high * SYSTICK_PERIOD + low;
}

void platform_start(void) { started = now(); }
void platform_stop(void) { ticks += now() - started; }
uint64_t platform_count(void) { return ticks * 1000 / CLOCK_MHZ; }

static void on_tick(void) { wraps++; }

static void fail(void) {
  length = 0;
  semihost(0x04, "fault\n");
  platform_exit();
}

void reset(void) {
  memcpy(data_start, data_load, (size_t)((char*)data_end - (char*)data_start));
  memset(bss_start, 0, (size_t)((char*)bss_end - (char*)bss_start));
#ifdef __ARM_FP
  COPROCESSOR_ACCESS |= 0xfu << 20;
  __asm__ volatile("dsb\n\tisb");
#endif
  SYSTICK_RELOAD = SYSTICK_PERIOD - 1;
  SYSTICK_VALUE = 0;
  SYSTICK_CONTROL = 7;  // processor clock, interrupt, on
  main();
  platform_exit();
}

__attribute__((section(".vectors"), used)) static const void* const vectors[16] = {
    stack_top,
    (const void*)reset,
    (const void*)fail,
    (const void*)fail,
    (const void*)fail,
    (const void*)fail,
    (const void*)fail,
    0,
    0,
    0,
    0,
    (const void*)fail,
    0,
    0,
    (const void*)fail,
    (const void*)on_tick};
