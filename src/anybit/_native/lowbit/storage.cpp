// SPDX-License-Identifier: Apache-2.0
#include "storage.hpp"

namespace anybit::lowbit {

namespace {

constexpr std::int64_t most_bytes = std::int64_t{1} << 46;

std::int64_t times(std::int64_t a, std::int64_t b) {
  if (b > 0 && a > most_bytes / b)
    throw Error(Error::Kind::value, "a tensor of the program is larger than any memory");
  return a * b;
}

std::int64_t bytes_per_pixel(Coding coding, std::int64_t channels) {
  if (coding == Coding::bytes) return channels;
  return (channels + 31) / 32 * word_bytes(coding);
}

}  // namespace

Storage::Storage(Coding coding_, const Tensor& tensor, const Border& border_)
    : coding(coding_),
      height(tensor.height),
      width(tensor.width),
      channels(tensor.channels),
      border(border_) {
  pixel = times(bytes_per_pixel(coding, channels), 1);
  line = times(border.left + width + border.right, pixel);
  row = times(border.top + height + border.bottom, line);
  row = (row + alignment - 1) / alignment * alignment;
}

void clear_border(const Storage& storage, std::byte* tensor, std::int64_t first,
                  std::int64_t last) {
  const Border& border = storage.border;
  if (border.empty()) return;
  const auto zero = [](std::byte* at, std::int64_t size) {
    std::memset(at, 0, static_cast<std::size_t>(size));
  };
  const std::int64_t inside = storage.width * storage.pixel;
  const std::int64_t gap = (border.right + border.left) * storage.pixel;
  for (std::int64_t row = first; row < last; ++row) {
    std::byte* const start = tensor + row * storage.row;
    zero(start, storage.offset(0, 0));
    for (std::int64_t y = 0; y + 1 < storage.height; ++y)
      zero(start + storage.offset(y, 0) + inside, gap);
    const std::int64_t end = storage.offset(storage.height - 1, 0) + inside;
    zero(start + end, storage.row - end);
  }
}

}  // namespace anybit::lowbit
