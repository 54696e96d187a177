// SPDX-License-Identifier: Apache-2.0
// Tables of 256 bytes that differ by channel, grouped for lookups of 64 bytes at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "packed_weights.hpp"
#include "product_kernels.hpp"

namespace anybit::lowbit {

class ChannelTables {
 public:
  // `entries` has a table of `size` entries per channel. Without chunks if they are many, or one
  // has more than `most_tables`.
  ChannelTables(std::span<const std::uint8_t> entries, std::int64_t size) {
    const auto channels = static_cast<std::int64_t>(entries.size()) / size;
    if (channels / std::gcd(channels, chunk_bytes) > most_chunks) return;
    std::map<std::string, std::int64_t> numbers;
    std::vector<std::int64_t> number_of;
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      const auto own =
          entries.subspan(static_cast<std::size_t>(channel * size), static_cast<std::size_t>(size));
      const auto count = static_cast<std::int64_t>(numbers.size());
      number_of.push_back(numbers.try_emplace({own.begin(), own.end()}, count).first->second);
    }
    entries_ = Aligned<std::uint8_t>(static_cast<std::int64_t>(numbers.size()) * table_size);
    for (const auto& [table, number] : numbers)
      std::copy(table.begin(), table.end(), entries_.from(number * table_size));
    group(number_of);
  }

  bool is_grouped() const { return !chunks_.empty(); }
  const ChannelChunk* chunks() const { return chunks_.data(); }
  std::int64_t chunk_count() const { return static_cast<std::int64_t>(chunks_.size()); }
  std::int64_t bytes() const {
    return entries_.size() + chunk_count() * static_cast<std::int64_t>(sizeof(ChannelChunk));
  }

 private:
  static constexpr std::int64_t table_size = 256, chunk_bytes = 64, most_chunks = 256;

  // Pixels lie side by side: chunks repeat after a common multiple of their size and a pixel's.
  void group(const std::vector<std::int64_t>& number_of) {
    const auto channels = static_cast<std::int64_t>(number_of.size());
    const std::int64_t count = channels / std::gcd(channels, chunk_bytes);
    for (std::int64_t chunk = 0; chunk < count; ++chunk) {
      std::map<std::int64_t, std::uint64_t> bytes_of;
      for (std::int64_t i = 0; i < chunk_bytes; ++i) {
        const std::int64_t channel = (chunk * chunk_bytes + i) % channels;
        bytes_of[number_of[static_cast<std::size_t>(channel)]] |= std::uint64_t{1} << i;
      }
      if (bytes_of.size() > ChannelChunk::most_tables) return chunks_.clear();
      ChannelChunk& own = chunks_.emplace_back();
      for (const auto& [number, bytes] : bytes_of)
        own.tables[own.count++] = {entries_.from(number * table_size), bytes};
    }
  }

  Aligned<std::uint8_t> entries_;
  std::vector<ChannelChunk> chunks_;
};

}  // namespace anybit::lowbit
