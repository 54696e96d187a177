// SPDX-License-Identifier: Apache-2.0
// Epilogue of the sums of blocks of pixels, chunk by chunk of channels.
#pragma once

#include <algorithm>
#include <cstring>

#include "pixel_blocks.hpp"

namespace anybit::lowbit {

// Copies `count` floats of each pixel, from lines of chunks.
template <int count>
inline void copy_floats(const float* from, float* const* pixels, int pixel_count,
                        std::int64_t start) {
  for (int i = 0; i < pixel_count; ++i, from += chunk_channels)
    std::memcpy(pixels[i] + start, from, count * sizeof(float));
}

// Moves the floats of the channels of a chunk to their runs.
inline void move_to_runs(const ChannelRuns& runs, const float* room, std::int64_t first,
                         int channels, float* const* pixels, int pixel_count) {
  for (std::int64_t done = 0, some; done < channels; done += some, room += some) {
    const std::int64_t run = (first + done) / runs.length, begun = (first + done) % runs.length;
    const std::int64_t start = runs.starts[static_cast<std::size_t>(run)] + begun;
    some = std::min(runs.length - begun, channels - done);
    if (some == 1) copy_floats<1>(room, pixels, pixel_count, start);
    else if (some == 2) copy_floats<2>(room, pixels, pixel_count, start);
    else if (some == 4) copy_floats<4>(room, pixels, pixel_count, start);
    else
      for (int i = 0; i < pixel_count; ++i)
        std::memcpy(pixels[i] + start, room + i * chunk_channels,
                    static_cast<std::size_t>(some) * sizeof(float));
  }
}

// Returns from[i] + offset, in `to` if they differ.
template <class T>
inline T* const* moved(T* const* from, int count, std::int64_t offset, T** to) {
  if (offset == 0) return from;
  for (int i = 0; i < count; ++i) to[i] = from[i] + offset;
  return to;
}

class PixelEpilogue {
 public:
  // Sums are [pixel][stride]. `arrays` are those of the steps, in their order, at row 0.
  PixelEpilogue(const PackedProduct::State& at, std::ptrdiff_t stride, const float* const* arrays)
      : at_(at),
        arrays_(arrays),
        epilogue_(at.kernels->epilogues[static_cast<std::size_t>(at.epilogue.kind)]),
        block_(make_epilogue_block(at.epilogue, at.to.coding, at.target.levels)),
        shorts_(at.short_epilogue.block(at.to.coding, at.target.levels, at.epilogue.shift)) {
    block_.settling = at.settling, block_.float_channel = has_runs() ? 1 : at.floats.channel;
    block_.stride = stride;
    shorts_.stride = stride, shorts_.first_class = at.constants.data();
  }

  // Finds the operands of a block of pixels in the arrays that steps read.
  void start(const Pixels& pixels) {
    for (std::size_t i = 0; i < at_.arrays.size(); ++i)
      for (int pixel = 0; pixel < pixels.count; ++pixel)
        operands_[i][pixel] = arrays_[i] + pixels.rows[pixel] * at_.arrays[i].row +
                              pixels.places[pixel] * at_.arrays[i].pixel;
  }

  void run(const Pixels& pixels, std::int64_t channel, int channels, const std::int32_t* sums) {
    const std::int64_t place = place_of(channel);
    const bool to_indices = at_.to.channels > 0;
    block_.channels = channels, block_.scales = at_.scales.data() + channel;
    set_chunk(block_, at_.epilogue, channel);
    for (int r = 0; r < pixels.run_count; ++r) {
      const auto [first, count] = pixels.runs[r];
      if (to_indices) block_.targets = moved(pixels.targets + first, count, place, targets_);
      else block_.floats = floats_of(pixels, first, count, channel);
      for (std::size_t i = 0; i < at_.arrays.size(); ++i) block_.arrays[i] = operands_[i] + first;
      block_.count = count, block_.sums = sums + first * block_.stride;
      block_.constants = pixels.constants + first, block_.addends = pixels.addends + first;
      epilogue_(block_);
      if (has_runs())
        move_to_runs(at_.channel_runs, room_, channel, channels, pixels.floats + first, count);
    }
  }

  // The same of the low 16 bits of the sums, of a chunk that the short epilogue covers.
  void run(const Pixels& pixels, std::int64_t channel, int channels, const std::int16_t* sums) {
    at_.short_epilogue.set_chunk(shorts_, at_.epilogue, channel);
    shorts_.place = place_of(channel), shorts_.channels = channels;
    for (int r = 0; r < pixels.run_count; ++r) {
      const auto [first, count] = pixels.runs[r];
      shorts_.count = count, shorts_.sums = sums + first * shorts_.stride;
      shorts_.classes = pixels.constants + first, shorts_.addends = pixels.addends + first;
      shorts_.targets = pixels.targets + first;
      at_.kernels->short_epilogue(shorts_);
    }
  }

 private:
  // Where the epilogue stores the floats of a chunk of some pixels.
  float* const* floats_of(const Pixels& pixels, int first, int count, std::int64_t channel) {
    if (!has_runs())
      return moved(pixels.floats + first, count, channel * at_.floats.channel, outputs_);
    put_steps(outputs_, count, room_, std::int64_t{chunk_channels});
    return outputs_;
  }

  bool has_runs() const { return !at_.channel_runs.starts.empty(); }
  std::int64_t place_of(std::int64_t channel) const {
    return at_.to.coding == Coding::bytes ? channel : channel / 32 * word_bytes(at_.to.coding);
  }

  const PackedProduct::State& at_;
  const float* const* const arrays_;
  void (*const epilogue_)(const EpilogueBlock&);
  EpilogueBlock block_;
  ShortEpilogueBlock shorts_;
  std::byte* targets_[most_block_pixels];
  float* outputs_[most_block_pixels];
  const float* operands_[most_step_arrays][most_block_pixels];
  alignas(64) float room_[most_block_pixels * chunk_channels];
};

}  // namespace anybit::lowbit
