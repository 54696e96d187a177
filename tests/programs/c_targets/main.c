// SPDX-License-Identifier: Apache-2.0
// Run a network on rows that are linked in, and print the bytes of its outputs.
//
// call.h defines RUN(in, out, arena), INPUT_TYPE, INPUT_COUNT, OUTPUT_TYPE, OUTPUT_COUNT,
// ARENA_BYTES and ROW_COUNT. Arena and outputs hold other bytes before each call.

#include <stddef.h>
#include <string.h>

#include "call.h"
#include "platform.h"

#define ALIGNED __attribute__((aligned(8)))

#ifdef __cplusplus
extern "C" {
#endif
extern const unsigned char rows[];
#ifdef __cplusplus
}
#endif

static INPUT_TYPE input[INPUT_COUNT] ALIGNED;
static OUTPUT_TYPE output[OUTPUT_COUNT] ALIGNED;
static unsigned char arena[ARENA_BYTES] ALIGNED;

static void put(const char* text) {
  while (*text) {
    platform_put(*text++);
  }
}

static void put_number(const char* name, uint64_t number) {
  char text[24];
  size_t at = sizeof text - 1;
  text[at] = 0;
  do {
    text[--at] = (char)('0' + (int)(number % 10));
    number /= 10;
  } while (number);
  put(name);
  put(text + at);
  put("\n");
}

static void put_bytes(const void* bytes, size_t count) {
  const unsigned char* at = (const unsigned char*)bytes;
  put("row ");
  for (size_t i = 0; i < count; i++) {
    platform_put("0123456789abcdef"[at[i] >> 4]);
    platform_put("0123456789abcdef"[at[i] & 15]);
  }
  put("\n");
}

#ifdef PLATFORM_HAS_STACK
#define STACK_LIMIT 65536
#define MARK 0xa7

static unsigned char* stack_low(const unsigned char* pointer) {
  unsigned char* lowest = platform_free_memory;
  return (size_t)(pointer - lowest) > STACK_LIMIT ? (unsigned char*)pointer - STACK_LIMIT : lowest;
}

static __attribute__((noinline)) size_t run_with_marks(int* status) {
  unsigned char here;
  const unsigned char* volatile top = &here - 48;
  unsigned char* low = stack_low(top);
  for (unsigned char* at = low; at < top; at++) {
    *(volatile unsigned char*)at = MARK;
  }
  platform_start();
  *status = RUN(input, output, arena);
  platform_stop();
  unsigned char* used = low;
  while (used < top && *(volatile unsigned char*)used == MARK) {
    used++;
  }
  return (size_t)(&here - used);
}
#else
static size_t run_with_marks(int* status) {
  platform_start();
  *status = RUN(input, output, arena);
  platform_stop();
  return 0;
}
#endif

int main(void) {
  size_t stack = 0;
  for (unsigned row = 0; row < ROW_COUNT; row++) {
    int status = 0;
    READ_ROW(input, rows + (size_t)row * sizeof input, sizeof input);
    memset(output, (int)(row + 1), sizeof output);
    memset(arena, 0xff - (int)row, sizeof arena);
    size_t used = run_with_marks(&status);
    stack = used > stack ? used : stack;
    if (status) {
      put_number("status ", (uint64_t)(unsigned)status);
    }
    put_bytes(output, sizeof output);
  }
  put_number("stack ", stack);
  put_number("count ", platform_count());
  put("end\n");
  platform_exit();
  return 0;
}
