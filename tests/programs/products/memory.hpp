// SPDX-License-Identifier: Apache-2.0
// Memory of tensors as products read and write it.
#pragma once
#include "layers.hpp"

namespace {

struct Memory {
  std::vector<std::byte> bytes;
  std::byte* data;
  Memory(const Storage& storage, std::int64_t rows)
      : bytes(static_cast<std::size_t>(storage.size(rows) + slack + alignment), std::byte{0xa5}) {
    const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
    data = bytes.data() + (alignment - at % alignment) % alignment;
  }
};

Memory stored(const Storage& storage, const std::vector<std::uint8_t>& indices, std::int64_t rows) {
  Memory memory(storage, rows);
  clear_border(storage, memory.data, 0, rows);
  std::size_t next = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t y = 0; y < storage.height; ++y)
      for (std::int64_t x = 0; x < storage.width;
           ++x, next += static_cast<std::size_t>(storage.channels))
        put_run(storage.coding, memory.data + row * storage.row + storage.offset(y, x), 0,
                &indices[next], storage.channels);
  return memory;
}

}  // namespace
