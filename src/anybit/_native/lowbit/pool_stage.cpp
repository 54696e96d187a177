// SPDX-License-Identifier: Apache-2.0
// The largest index of each window.
#include "runs.hpp"
#include "tensor_stage.hpp"

namespace anybit::lowbit {

namespace {

// The elements of a window that lie inside the tensor, along one axis.
struct Taps {
  std::int64_t first = 0, last = 0, step = 1;

  Taps(std::int64_t start, std::int64_t kernel, std::int64_t dilation, std::int64_t size)
      : step(dilation) {
    const std::int64_t skipped = start < 0 ? (-start + dilation - 1) / dilation : 0;
    first = start + skipped * dilation;
    last = std::min(size, start + (kernel - 1) * dilation + 1);
  }
};

class MaxPoolStage final : public TensorStage {
 public:
  MaxPoolStage(const MaxPool& at, const Place& from, const Place& to, const ElementLoops& loops)
      : TensorStage(MaxPool::name, &from, to), window_(at.window) {
    if (from.storage.coding != to.storage.coding) return;
    constexpr auto either = &ElementLoops::either;
    largest_ = loops.*(in_bytes(to)                        ? &ElementLoops::largest
                       : to.storage.coding == Coding::bits ? either
                                                           : &ElementLoops::largest_planes);
  }

 protected:
  void fill(const Memory& memory, std::int64_t row, std::int64_t y) const override {
    const std::byte* const from = source->row(memory, row);
    std::byte* const to = target->row(memory, row);
    const Storage& storage = source->storage;
    const Taps rows(y * window_.stride_height - window_.pad_top, window_.kernel_height,
                    window_.dilation_height, storage.height);
    for (std::int64_t x = 0; x < target->storage.width; ++x) {
      const Taps columns(x * window_.stride_width - window_.pad_left, window_.kernel_width,
                         window_.dilation_width, storage.width);
      std::byte* const pixel = to + target->storage.offset(y, x);
      if (largest_ != nullptr) pool(from, rows, columns, pixel);
      else pool_unlike(from, rows, columns, pixel);
    }
  }

 private:
  void pool(const std::byte* from, const Taps& rows, const Taps& columns, std::byte* to) const {
    constexpr std::size_t most = 16;
    const std::byte* pixels[most];
    std::size_t count = 0;
    for (std::int64_t y = rows.first; y < rows.last; y += rows.step) {
      for (std::int64_t x = columns.first; x < columns.last; x += columns.step) {
        pixels[count++] = from + source->storage.offset(y, x);
        if (count < most) continue;
        largest_(pixels, count, source->storage.pixel, to);
        pixels[0] = to;
        count = 1;
      }
    }
    largest_(pixels, count, source->storage.pixel, to);
  }

  void pool_unlike(const std::byte* from, const Taps& rows, const Taps& columns,
                   std::byte* to) const {
    for (std::int64_t c = 0; c < channels; c += run_length) {
      const std::int64_t here = std::min(run_length, channels - c);
      Room largest = {}, room;
      for (std::int64_t y = rows.first; y < rows.last; y += rows.step) {
        for (std::int64_t x = columns.first; x < columns.last; x += columns.step) {
          const std::uint8_t* const indices =
              indices_at(source->storage, from, y, {x, c, here}, room);
          for (std::int64_t i = 0; i < here; ++i) largest[i] = std::max(largest[i], indices[i]);
        }
      }
      put_run(target->storage.coding, to, c, largest, here);
    }
  }

  const Window window_;
  void (*largest_)(const std::byte* const*, std::size_t, std::int64_t, std::byte*) = nullptr;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const MaxPool& at, const Place& source, const Place& target,
                                  const ElementLoops& loops) {
  return std::make_unique<MaxPoolStage>(at, source, target, loops);
}

}  // namespace anybit::lowbit
