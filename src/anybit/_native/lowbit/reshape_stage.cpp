// SPDX-License-Identifier: Apache-2.0
// Stage of a Reshape instruction.
#include <algorithm>

#include "runs.hpp"
#include "tensor_stage.hpp"

namespace anybit::lowbit {

namespace {

// Iterates over the elements of a tensor in logical order.
class StorageWalk {
 public:
  StorageWalk(const Storage& storage, bool channels_first)
      : storage_(storage), channels_first_(channels_first) {}

  std::int64_t pixel() const { return storage_.offset(y_, x_); }
  std::int64_t channel() const { return c_; }

  // The elements up to the end of a line, and how far bytes of them are apart.
  std::int64_t run() const {
    return channels_first_ ? storage_.width - x_ : (storage_.width - x_) * storage_.channels - c_;
  }
  std::int64_t stride() const { return channels_first_ ? storage_.pixel : 1; }

  // Goes on by `count` elements, at most to the end of a line.
  void advance(std::int64_t count) {
    if (channels_first_) {
      x_ += count;
    } else {
      c_ += count;
      x_ += c_ / storage_.channels, c_ %= storage_.channels;
    }
    if (x_ < storage_.width) return;
    x_ = 0;
    if (++y_ < storage_.height || !channels_first_) return;
    y_ = 0;
    ++c_;
  }

 private:
  const Storage& storage_;
  const bool channels_first_;
  std::int64_t y_ = 0, x_ = 0, c_ = 0;
};

// Whether the logical order is the memory order.
bool in_memory_order(const Storage& storage, std::int64_t channels_first) {
  return channels_first == 0 || storage.channels == 1 || storage.height * storage.width == 1;
}

class ReshapeStage final : public TensorStage {
 public:
  ReshapeStage(const Reshape& at, const Place& from, const Place& to)
      : TensorStage(Reshape::name, &from, to),
        source_first_(at.source_channels_first != 0),
        target_first_(at.target_channels_first != 0) {
    const Storage &a = from.storage, &b = to.storage;
    const bool alike = a.coding == b.coding && (in_bytes(to) || a.channels == b.channels ||
                                                (a.channels % 32 == 0 && b.channels % 32 == 0));
    // With equal sizes, all orders agree.
    const bool same = a.height == b.height && a.width == b.width && a.channels == b.channels &&
                      source_first_ == target_first_;
    copies_ = alike && (same || (in_memory_order(a, at.source_channels_first) &&
                                 in_memory_order(b, at.target_channels_first)));
    lines = 1;  // a row at a time
  }

  std::string kernel() const override { return copies_ ? "copy" : TensorStage::kernel(); }

 protected:
  void fill(const Memory& memory, std::int64_t row, std::int64_t) const override {
    const std::byte* const from = source->row(memory, row);
    std::byte* const to = target->row(memory, row);
    if (copies_) copy(from, to);
    else if (in_bytes(*source) && in_bytes(*target)) move_bytes(from, to);
    else walk(from, to);
  }

 private:
  // Lines are contiguous except for borders.
  void copy(const std::byte* from, std::byte* to) const {
    const Storage &a = source->storage, &b = target->storage;
    const std::int64_t line = a.width * a.pixel, other = b.width * b.pixel;
    for (std::int64_t done = 0; done < a.height * line;) {
      const std::int64_t here = std::min(line - done % line, other - done % other);
      std::memcpy(to + b.offset(done / other, 0) + done % other,
                  from + a.offset(done / line, 0) + done % line, static_cast<std::size_t>(here));
      done += here;
    }
  }

  void move_bytes(const std::byte* from, std::byte* to) const {
    StorageWalk a(source->storage, source_first_), b(target->storage, target_first_);
    const std::int64_t step = a.stride(), other = b.stride();
    for (std::int64_t done = 0, here; done < elements; done += here) {
      here = std::min(a.run(), b.run());
      const std::byte* const x = from + a.pixel() + a.channel();
      std::byte* const y = to + b.pixel() + b.channel();
      for (std::int64_t i = 0; i < here; ++i) y[i * other] = x[i * step];
      a.advance(here), b.advance(here);
    }
  }

  void walk(const std::byte* from, std::byte* to) const {
    if (!in_bytes(*target)) clear(target->storage, to, 0, 1);
    StorageWalk a(source->storage, source_first_), b(target->storage, target_first_);
    for (std::int64_t i = 0; i < elements; ++i, a.advance(1), b.advance(1))
      put(target->storage.coding, to + b.pixel(), b.channel(),
          take(source->storage.coding, from + a.pixel(), a.channel()));
  }

  const bool source_first_, target_first_;
  bool copies_ = false;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const Reshape& at, const Place& source, const Place& target) {
  return std::make_unique<ReshapeStage>(at, source, target);
}

}  // namespace anybit::lowbit
