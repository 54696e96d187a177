// SPDX-License-Identifier: Apache-2.0
// Blocks of pixels whose sums a product computes together.
#pragma once

#include <algorithm>

#include "packed_state.hpp"

namespace anybit::lowbit {

// Pixels of a block with their addresses. Windows between the runs are not pixels of the target.
struct Pixels {
  struct Run {
    int first, count;
  };
  int count = 0, run_count = 0;
  Run runs[most_block_pixels];
  const std::byte* windows[most_block_pixels];
  const std::int32_t* constants[most_block_pixels];
  std::byte* targets[most_block_pixels];
  float* floats[most_block_pixels];
  std::int64_t rows[most_block_pixels];    // of the batch, where steps read arrays
  std::int64_t places[most_block_pixels];  // in the row
  std::int32_t addends[most_block_pixels];
};

// to[i] = start + i * step, four at a time: compilers do not unroll this, and it takes a part of
// the time of small products.
template <class T>
inline void put_steps(T* to, int count, T start, std::int64_t step) {
  int i = 0;
  for (; i + 4 <= count; i += 4, start += 4 * step) {
    to[i] = start, to[i + 1] = start + step;
    to[i + 2] = start + 2 * step, to[i + 3] = start + 3 * step;
  }
  for (; i < count; ++i, start += step) to[i] = start;
}

// Addresses of the pixels of a line of the target.
class PixelLine {
 public:
  PixelLine() = default;
  PixelLine(const PackedProduct::State& at, std::int64_t row, std::int64_t line, std::byte* target,
            float* floats)
      : at_(&at),
        row_(row),
        first_(at.places.first + line * at.places.line),
        constants_(at.constants.data() +
                   at.line_class[static_cast<std::size_t>(line)] * at.column_classes * at.padded) {
    if (target != nullptr) target_ = target + row * at.to.row + at.to.offset(line, 0);
    else floats_ = floats + row * at.floats.row;
  }

  // Makes the pixels from a column on, from number `first` of a block on.
  void put(Pixels& pixels, int first, int count, std::int64_t column) const {
    const PackedProduct::State& at = *at_;
    if (at.column_classes == 1) std::fill_n(pixels.constants + first, count, constants_);
    else
      for (int i = 0; i < count; ++i)
        pixels.constants[first + i] =
            constants_ + at.column_class[static_cast<std::size_t>(column + i)] * at.padded;
    if (target_ != nullptr)
      return put_steps(pixels.targets + first, count, target_ + column * at.to.pixel, at.to.pixel);
    const std::int64_t place = first_ + column * at.places.pixel, step = at.places.pixel;
    put_steps(pixels.floats + first, count, floats_ + place * at.floats.pixel,
              step * at.floats.pixel);
    if (at.arrays.empty()) return;
    std::fill_n(pixels.rows + first, count, row_);
    put_steps(pixels.places + first, count, place, step);
  }

 private:
  const PackedProduct::State* at_ = nullptr;
  std::int64_t row_ = 0, first_ = 0;
  std::byte* target_ = nullptr;
  float* floats_ = nullptr;
  const std::int32_t* constants_ = nullptr;
};

// Iterates over the pixels of a part in blocks.
class PixelBlocks {
 public:
  PixelBlocks(const PackedProduct::State& at, const Part& part, const std::byte* source,
              std::byte* target, float* floats)
      : at_(at),
        part_(part),
        source_(source),
        target_(target),
        floats_(floats),
        row_(part.first_row),
        line_(part.first_line),
        block_(at.block_pixels) {
    done_ = part.first_row >= part.last_row || part.first_line >= part.last_line;
    if (done_) row_ = part.last_row;
    if (!done_) begin_line();
  }

  bool next(Pixels& pixels) {
    pixels.count = pixels.run_count = 0;
    if (at_.target.width == 1 && at_.target.height == 1) return next_rows(pixels);
    while (!done_ && pixels.count < block_) {
      const auto here = static_cast<int>(
          std::min<std::int64_t>(block_ - pixels.count, at_.target.width - column_));
      add_run(pixels, here);
      put_steps(pixels.windows + pixels.count, here, window_, window_step_);
      pixel_line_.put(pixels, pixels.count, here, column_);
      pixels.count += here, column_ += here, window_ += here * window_step_;
      if (column_ == at_.target.width) {
        const bool more = at_.gap > 0 && line_ + 1 < part_.last_line;
        const int gap = more && at_.gap < block_ - pixels.count ? at_.gap : 0;
        for (int i = 0; i < gap; ++i, window_ += window_step_)
          pixels.windows[pixels.count++] = window_;
        end_line();
      }
    }
    return pixels.count > 0;
  }

 private:
  static void add_run(Pixels& pixels, int count) {
    if (pixels.run_count > 0) {
      Pixels::Run& last = pixels.runs[pixels.run_count - 1];
      if (last.first + last.count == pixels.count) return static_cast<void>(last.count += count);
    }
    pixels.runs[pixels.run_count++] = {pixels.count, count};
  }

  // The block for rows of a single pixel.
  bool next_rows(Pixels& pixels) {
    const auto here = static_cast<int>(std::min<std::int64_t>(block_, part_.last_row - row_));
    if (here <= 0) return false;
    add_run(pixels, here);
    for (; pixels.count < here; ++row_, ++pixels.count, window_ += at_.from.row) {
      pixels.windows[pixels.count] = window_;
      PixelLine(at_, row_, 0, target_, floats_).put(pixels, pixels.count, 1, 0);
    }
    return true;
  }

  void begin_line() {
    const Window& w = at_.window;
    window_step_ = w.stride_width * at_.from.pixel;
    window_ = source_ + row_ * at_.from.row +
              at_.from.offset(line_ * w.stride_height - w.pad_top, -w.pad_left);
    pixel_line_ = PixelLine(at_, row_, line_, target_, floats_);
    column_ = 0;
  }

  void end_line() {
    if (++line_ == part_.last_line) {
      line_ = part_.first_line;
      if (++row_ == part_.last_row) done_ = true;
    }
    if (!done_) begin_line();
  }

  const PackedProduct::State& at_;
  const Part& part_;
  const std::byte* const source_;
  std::byte* const target_;
  float* const floats_;
  std::int64_t row_, line_, column_ = 0;
  const int block_;
  bool done_ = false;
  std::ptrdiff_t window_step_ = 0;
  const std::byte* window_ = nullptr;
  PixelLine pixel_line_;
};

}  // namespace anybit::lowbit
