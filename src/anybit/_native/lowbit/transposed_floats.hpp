// SPDX-License-Identifier: Apache-2.0
// Transposition of float32 numbers.
#pragma once

#include <cstdint>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace anybit::lowbit {

// to[j][i] = from[i][j] for i < lines and j < columns. Strides of lines are in elements.
//
// Lines of the target often share a cache set: as many elements as a cache line has are stored to
// each before the next one.
inline void transpose_floats(const float* from, std::int64_t from_line, std::int64_t lines,
                             std::int64_t columns, float* to, std::int64_t to_line) {
  std::int64_t done = 0;
#if defined(__SSE2__)
  constexpr std::int64_t most = 16;
  while (done + 4 <= lines) {
    const std::int64_t some = lines - done < most ? (lines - done) / 4 * 4 : most;
    std::int64_t j = 0;
    for (; j + 4 <= columns; j += 4)
      for (std::int64_t i = 0; i < some; i += 4) {
        const float* const at = from + i * from_line + j;
        __m128 a = _mm_loadu_ps(at), b = _mm_loadu_ps(at + from_line),
               c = _mm_loadu_ps(at + 2 * from_line), d = _mm_loadu_ps(at + 3 * from_line);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        float* const result = to + j * to_line + i;
        _mm_storeu_ps(result, a), _mm_storeu_ps(result + to_line, b);
        _mm_storeu_ps(result + 2 * to_line, c), _mm_storeu_ps(result + 3 * to_line, d);
      }
    for (; j < columns; ++j)
      for (std::int64_t i = 0; i < some; ++i) to[j * to_line + i] = from[i * from_line + j];
    done += some, from += some * from_line, to += some;
  }
#endif
  for (; done < lines; ++done, from += from_line, ++to)
    for (std::int64_t j = 0; j < columns; ++j) to[j * to_line] = from[j];
}

}  // namespace anybit::lowbit
