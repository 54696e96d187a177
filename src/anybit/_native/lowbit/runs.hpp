// SPDX-License-Identifier: Apache-2.0
// Access to indices as runs of bytes, for all codings.
#pragma once

#include <algorithm>

#include "stage.hpp"

namespace anybit::lowbit {

// Channels per run for codings other than bytes: a multiple of 32.
inline constexpr std::int64_t run_length = 512;

// A run of channels of a pixel, or of all pixels of a line.
struct Run {
  std::int64_t pixel = 0, channel = 0, count = 0;
};

// Calls work(run) for the runs of a line.
template <class Work>
void for_each_run(std::int64_t width, std::int64_t channels, bool whole_lines, const Work& work) {
  if (whole_lines) return work(Run{0, 0, width * channels});
  for (std::int64_t x = 0; x < width; ++x)
    for (std::int64_t c = 0; c < channels; c += run_length)
      work(Run{x, c, std::min(run_length, channels - c)});
}

inline bool in_bytes(const Place& place) { return place.storage.coding == Coding::bytes; }

using Room = std::uint8_t[run_length];

// Returns the indices of a run: in place, or unpacked into a buffer.
inline const std::uint8_t* indices_at(const Storage& storage, const std::byte* row, std::int64_t y,
                                      const Run& run, Room& room) {
  const std::byte* const pixel = row + storage.offset(y, run.pixel);
  if (storage.coding == Coding::bytes)
    return reinterpret_cast<const std::uint8_t*>(pixel) + run.channel;
  take_run(storage.coding, pixel, run.channel, room, run.count);
  return room;
}

// Returns the memory to write a run to, before `put_indices` packs it.
inline std::uint8_t* room_for(const Storage& storage, std::byte* row, std::int64_t y,
                              const Run& run, Room& room) {
  if (storage.coding != Coding::bytes) return room;
  return reinterpret_cast<std::uint8_t*>(row + storage.offset(y, run.pixel)) + run.channel;
}

inline void put_indices(const Storage& storage, std::byte* row, std::int64_t y, const Run& run,
                        const std::uint8_t* indices) {
  if (storage.coding != Coding::bytes)
    put_run(storage.coding, row + storage.offset(y, run.pixel), run.channel, indices, run.count);
}

}  // namespace anybit::lowbit
