// SPDX-License-Identifier: Apache-2.0
// Stage of a MaxPool instruction.
#include "runs.hpp"
#include "tensor_stage.hpp"
#include "window_taps.hpp"

namespace anybit::lowbit {

namespace {

// Elements of a window inside the tensor, along one axis.
struct Elements {
  std::int64_t first, count, step;

  Elements(std::int64_t start, std::int64_t kernel, std::int64_t dilation, std::int64_t size)
      : step(dilation) {
    const Taps taps(start, kernel, dilation, size);
    first = start + taps.first * dilation;
    count = taps.count();
  }
};

class MaxPoolStage final : public TensorStage {
 public:
  MaxPoolStage(const MaxPool& at, const Place& from, const Place& to, const ElementLoops& loops)
      : TensorStage(MaxPool::name, &from, to), window_(at.window) {
    const Coding coding = to.storage.coding;
    if (from.storage.coding == coding)
      max_pool_ = coding == Coding::bytes    ? loops.max_pool
                  : coding == Coding::bits   ? loops.max_pool_bits
                  : coding == Coding::planes ? loops.max_pool_planes
                                             : loops.max_pool_nibbles;
  }

 protected:
  void fill(const Memory& memory, std::int64_t row, std::int64_t y) const override {
    const std::byte* const from = source->row(memory, row);
    std::byte* const to = target->row(memory, row);
    const Storage& storage = source->storage;
    const Elements rows(y * window_.stride_height - window_.pad_top, window_.kernel_height,
                        window_.dilation_height, storage.height);
    const std::int64_t width = target->storage.width;
    for (std::int64_t x = 0, next = 0; x < width; x = next) {
      next = x + 1;
      const Elements columns = elements_at(x);
      // Adjacent windows with the same number of elements.
      while (next < width && elements_at(next).count == columns.count &&
             elements_at(next).first - columns.first == (next - x) * window_.stride_width)
        ++next;
      std::byte* const pixels = to + target->storage.offset(y, x);
      if (max_pool_ != nullptr)
        max_pool_({from + storage.offset(rows.first, columns.first), rows.count, columns.count,
                   rows.step * storage.line, columns.step * storage.pixel, next - x,
                   window_.stride_width * storage.pixel, storage.pixel},
                  pixels);
      else pool_unlike(from, rows, columns, pixels), next = x + 1;
    }
  }

 private:
  Elements elements_at(std::int64_t x) const {
    return {x * window_.stride_width - window_.pad_left, window_.kernel_width,
            window_.dilation_width, source->storage.width};
  }

  void pool_unlike(const std::byte* from, const Elements& rows, const Elements& columns,
                   std::byte* to) const {
    for (std::int64_t c = 0; c < channels; c += run_length) {
      const std::int64_t here = std::min(run_length, channels - c);
      Room largest = {}, room;
      for (std::int64_t row = 0; row < rows.count; ++row) {
        for (std::int64_t column = 0; column < columns.count; ++column) {
          const std::int64_t y = rows.first + row * rows.step;
          const std::int64_t x = columns.first + column * columns.step;
          const std::uint8_t* const indices =
              indices_at(source->storage, from, y, {x, c, here}, room);
          for (std::int64_t i = 0; i < here; ++i) largest[i] = std::max(largest[i], indices[i]);
        }
      }
      put_run(target->storage.coding, to, c, largest, here);
    }
  }

  const Window window_;
  void (*max_pool_)(const WindowRow&, std::byte*) = nullptr;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const MaxPool& at, const Place& source, const Place& target,
                                  const ElementLoops& loops) {
  return std::make_unique<MaxPoolStage>(at, source, target, loops);
}

}  // namespace anybit::lowbit
