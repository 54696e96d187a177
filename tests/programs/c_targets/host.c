// SPDX-License-Identifier: Apache-2.0
// The machine that compiles: standard output, and no count of instructions.
#include "platform.h"

#include <stdio.h>

void platform_put(char character) { putchar(character); }
void platform_exit(void) { fflush(stdout); }
void platform_start(void) {}
void platform_stop(void) {}
uint64_t platform_count(void) { return 0; }
