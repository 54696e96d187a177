// SPDX-License-Identifier: Apache-2.0
// Transposition of float32 numbers.
#pragma once

#include <cstdint>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace anybit::lowbit {

// to[j][i] = from[i][j] for i < lines and j < columns. Strides of lines are in elements.
inline void transpose_floats(const float* from, std::int64_t from_line, std::int64_t lines,
                             std::int64_t columns, float* to, std::int64_t to_line) {
  std::int64_t done = 0;
#if defined(__SSE2__)
  for (; done + 4 <= lines; done += 4, from += 4 * from_line, to += 4) {
    std::int64_t j = 0;
    for (; j + 4 <= columns; j += 4) {
      __m128 a = _mm_loadu_ps(from + j), b = _mm_loadu_ps(from + from_line + j),
             c = _mm_loadu_ps(from + 2 * from_line + j), d = _mm_loadu_ps(from + 3 * from_line + j);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      _mm_storeu_ps(to + j * to_line, a), _mm_storeu_ps(to + (j + 1) * to_line, b);
      _mm_storeu_ps(to + (j + 2) * to_line, c), _mm_storeu_ps(to + (j + 3) * to_line, d);
    }
    for (; j < columns; ++j)
      for (int i = 0; i < 4; ++i) to[j * to_line + i] = from[i * from_line + j];
  }
#endif
  for (; done < lines; ++done, from += from_line, ++to)
    for (std::int64_t j = 0; j < columns; ++j) to[j * to_line] = from[j];
}

}  // namespace anybit::lowbit
