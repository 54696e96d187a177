// SPDX-License-Identifier: Apache-2.0
// Lookup of bytes in tables of 256 that differ by channel. Part of integer_kernels.cpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "_native/lowbit/product_kernels.hpp"

namespace {

using anybit::lowbit::ChannelChunk;

// Looks up 64 bytes in each table of their chunk: two instructions select from 128 entries each.
void look_up_channels(const ChannelChunk* chunks, std::int64_t chunk_count,
                      const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  std::int64_t number = 0;
  for (std::int64_t i = 0; i < n; i += 64) {
    const ChannelChunk& chunk = chunks[number];
    number = number + 1 == chunk_count ? 0 : number + 1;
    const __mmask64 stored = n - i < 64 ? ~__mmask64{0} >> (64 - (n - i)) : ~__mmask64{0};
    const __m512i indices = _mm512_maskz_loadu_epi8(stored, from + i);
    const __mmask64 upper = _mm512_movepi8_mask(indices);
    __m512i entries = _mm512_setzero_si512();
    for (int t = 0; t < chunk.count; ++t) {
      const std::uint8_t* const table = chunk.tables[t].entries;
      const auto selected = [&](const std::uint8_t* half) __attribute__((always_inline)) {
        return _mm512_permutex2var_epi8(_mm512_load_si512(half), indices,
                                        _mm512_load_si512(half + 64));
      };
      const __mmask64 own = chunk.tables[t].bytes;
      entries = _mm512_mask_mov_epi8(entries, own & ~upper, selected(table));
      entries = _mm512_mask_mov_epi8(entries, own & upper, selected(table + 128));
    }
    _mm512_mask_storeu_epi8(to + i, stored, entries);
  }
}

}  // namespace
