// SPDX-License-Identifier: Apache-2.0
// WebAssembly without a C library: run_wasm.mjs provides `put` and calls `start`.
#include "platform.h"

#include <string.h>

__attribute__((import_module("env"), import_name("put"))) void put_outside(char);

int main(void);

__attribute__((export_name("start"))) void start(void) { main(); }

void platform_put(char character) { put_outside(character); }
void platform_exit(void) {}
void platform_start(void) {}
void platform_stop(void) {}
uint64_t platform_count(void) { return 0; }

void* memcpy(void* restrict target, const void* restrict source, size_t size) {
  return __builtin_memcpy(target, source, size);
}

void* memmove(void* target, const void* source, size_t size) {
  return __builtin_memmove(target, source, size);
}

void* memset(void* target, int value, size_t size) { return __builtin_memset(target, value, size); }
