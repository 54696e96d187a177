// SPDX-License-Identifier: Apache-2.0
// A product of the program, ready to run: its weights packed for one kernel, its constants folded.
#pragma once

#include <limits>
#include <memory>
#include <string_view>

#include "_native/isa/levels.hpp"
#include "program.hpp"
#include "storage.hpp"

namespace anybit::lowbit {

// What a product gives: indices of a tensor, or float32 that lie apart by these strides, in floats.
// The strides of a port in the order height x width x channels are {elements, channels, 1}, those
// of channels x height x width {elements, 1, height * width}.
struct FloatStrides {
  std::int64_t row = 0, pixel = 0, channel = 0;
};

// A product as the program has it, and the tensors it lies between. All has been verified.
struct ProductTask {
  const Product* product = nullptr;
  Tensor source;
  Tensor target;  // of a port: its height, width and channels
  std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max();  // that it may become
};

// What part of the target to fill. Channels begin and end at multiples of `channel_grain`, or with
// the last channel.
struct Part {
  std::int64_t first_row = 0, last_row = 0;    // of the batch
  std::int64_t first_line = 0, last_line = 0;  // of the target
  std::int64_t first_channel = 0, last_channel = 0;
};

inline constexpr std::int64_t channel_grain = 64;

class PackedProduct {
 public:
  // How the fastest kernel of that level wants its source. Every product takes bytes, too.
  static Coding preferred_coding(const ProductTask& task, Level level);

  // The source's border must not be smaller than the pads of the window.
  PackedProduct(const ProductTask& task, const Storage& source, const Storage& target, Level level);
  PackedProduct(const ProductTask& task, const Storage& source, FloatStrides target, Level level);
  ~PackedProduct();
  PackedProduct(PackedProduct&&) noexcept;

  // Rows of the source and of the target begin at row 0 of the batch. Parts that have no element in
  // common may run at the same time.
  void run(const std::byte* source, std::byte* target, const Part& part) const;
  void run(const std::byte* source, float* target, const Part& part) const;

  // For reports: the name of the kernel, the bytes of its weights and constants, and the
  // multiplications for one row of the batch.
  std::string_view kernel() const;
  std::int64_t bytes() const;
  std::int64_t multiplications() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace anybit::lowbit
