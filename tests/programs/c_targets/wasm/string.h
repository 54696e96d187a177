// SPDX-License-Identifier: Apache-2.0
// The functions of wasm.c.
#ifndef STRING_H
#define STRING_H

#include <stddef.h>

void* memcpy(void* restrict target, const void* restrict source, size_t size);
void* memmove(void* target, const void* source, size_t size);
void* memset(void* target, int value, size_t size);

#endif
