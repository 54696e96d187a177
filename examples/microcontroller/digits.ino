// SPDX-License-Identifier: Apache-2.0
#include <digits.h>

#include "images.h"

static int32_t arena[(DIGITS_ARENA_SIZE + 3) / 4];

void setup() { Serial.begin(9600); }

void loop() {
  static int i = 0;
  int8_t scores[DIGITS_OUTPUT_SIZE];
  int digit = 0;
  digits_run(images[i], scores, arena);
  for (int j = 1; j < DIGITS_OUTPUT_SIZE; j++) {
    if (scores[j] > scores[digit]) digit = j;
  }
  Serial.println(digit);
  i = (i + 1) % IMAGE_COUNT;
  delay(1000);
}
