// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "digits.h"
#include "images.h"

static int32_t arena[(DIGITS_ARENA_SIZE + 3) / 4];

int main(void) {
  for (int i = 0; i < IMAGE_COUNT; i++) {
    int8_t scores[DIGITS_OUTPUT_SIZE];
    int digit = 0;
    digits_run(images[i], scores, arena);
    for (int j = 1; j < DIGITS_OUTPUT_SIZE; j++) {
      if (scores[j] > scores[digit]) digit = j;
    }
    printf("image %d: %d\n", i, digit);
  }
  return 0;
}
