// SPDX-License-Identifier: Apache-2.0
// What main.c needs of a machine.
#ifndef PLATFORM_H
#define PLATFORM_H

#include <stdint.h>

void platform_put(char character);
void platform_exit(void);

// Count instructions (cycles on AVR) from start to stop. Several intervals add up; 0 if unknown.
void platform_start(void);
void platform_stop(void);
uint64_t platform_count(void);

#ifdef PLATFORM_HAS_STACK
// The end of static data; all memory from here to the stack pointer is free.
extern unsigned char platform_free_memory[];
#endif

#ifdef __AVR__
#include <avr/pgmspace.h>
#define READ_ROW(target, source, size) memcpy_P(target, source, size)
#else
#define READ_ROW(target, source, size) memcpy(target, source, size)
#endif

#endif
