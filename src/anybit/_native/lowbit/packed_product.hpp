// SPDX-License-Identifier: Apache-2.0
// A Product instruction, ready to run: weights packed for one kernel, constants folded.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "_native/isa/levels.hpp"
#include "program.hpp"
#include "storage.hpp"

namespace anybit::lowbit {

// Strides of a float32 output, in elements. A port in the order height x width x channels has
// {elements, channels, 1}, one in the order channels x height x width {elements, 1, height *
// width}.
struct FloatStrides {
  std::int64_t row = 0, pixel = 0, channel = 0;
};

// An operation on the floats of a product. Its operands are constants, one or per channel, or those
// of another array: one per pixel, or per pixel and channel, adjacent.
struct FloatStep {
  Operation operation = Operation::add;
  Floats constants;
  bool has_array = false, one_channel = false;
  FloatStrides array;
};

// Pixels of a target that a product fills: its pixel x of line y is pixel first + y * line + x *
// pixel of a row.
struct PixelPlaces {
  std::int64_t first = 0, line = 0, pixel = 1;
};

// Channels of a product whose floats go to several pixels: `length` channels are adjacent in the
// target, and `starts` are their distances from the pixel, in elements.
struct ChannelRuns {
  std::int64_t length = 1;
  std::vector<std::int64_t> starts;  // empty if channels are as in the target
};

// A verified Product instruction with its source and target tensors.
struct ProductTask {
  const Product* product = nullptr;
  Tensor source;
  Tensor target;                           // for a port: its height, width and channels
  std::vector<FloatStep> more = {};        // operations after those of the epilogue
  std::optional<PixelPlaces> places = {};  // in a target of floats; without them, all pixels
  ChannelRuns channel_runs = {};           // in a target of floats
  std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max();  // limit of the packed size
  bool fits_curve = true;  // whether there is time for the estimate of a curve
};

// Part of the target to fill. Channel ranges begin and end at multiples of `channel_grain`, or at
// the last channel.
struct Part {
  std::int64_t first_row = 0, last_row = 0;    // of the batch
  std::int64_t first_line = 0, last_line = 0;  // of the target
  std::int64_t first_channel = 0, last_channel = 0;
};

inline constexpr std::int64_t channel_grain = 64;

class PackedProduct {
 public:
  // Returns the source coding of the fastest kernel of a level. All products also accept bytes.
  static Coding preferred_coding(const ProductTask& task, Level level);

  // The border of the source must be at least as large as the pads of the window.
  PackedProduct(const ProductTask& task, const Storage& source, const Storage& target, Level level);
  PackedProduct(const ProductTask& task, const Storage& source, FloatStrides target, Level level);
  ~PackedProduct();
  PackedProduct(PackedProduct&&) noexcept;

  // Source and target point to row 0 of the batch. Disjoint parts may run concurrently.
  void run(const std::byte* source, std::byte* target, const Part& part) const;
  // `arrays` are those of the steps, in their order, at row 0.
  void run(const std::byte* source, float* target, const Part& part,
           const float* const* arrays = nullptr) const;

  // For reports: name of the kernel, bytes of weights and constants, multiplications per row of the
  // batch.
  std::string_view kernel() const;
  std::int64_t bytes() const;
  std::int64_t multiplications() const;

  // Lines that are computed together: parts from a multiple of it to another take the least time.
  std::int64_t line_grain() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace anybit::lowbit
