// SPDX-License-Identifier: Apache-2.0
// Base of stages that fill a tensor line by line.
#pragma once

#include "stage.hpp"

namespace anybit::lowbit {

constexpr std::string_view name_of(Coding coding) {
  constexpr std::string_view names[] = {"bytes", "bits", "planes", "nibbles"};
  return names[static_cast<int>(coding)];
}

class TensorStage : public Stage {
 public:
  TensorStage(std::string_view instruction, const Place* from, const Place& to) {
    name = instruction;
    source = from;
    target = &to;
    lines = to.storage.height;
    channels = to.storage.channels;
    elements = lines * to.storage.width * channels;
  }

  std::string kernel() const override { return std::string(name_of(target->storage.coding)); }

  void run(const Memory& memory, const Part& part) const final {
    start_rows(*target, memory, part);
    for (std::int64_t row = part.first_row; row < part.last_row; ++row)
      fill_lines(memory, row, part.first_line, part.last_line);
  }

 protected:
  // Fills lines [first, last) of the target.
  virtual void fill_lines(const Memory& memory, std::int64_t row, std::int64_t first,
                          std::int64_t last) const {
    for (std::int64_t y = first; y < last; ++y) fill(memory, row, y);
  }
  // Fills a line of the target.
  virtual void fill(const Memory& memory, std::int64_t row, std::int64_t y) const = 0;
};

}  // namespace anybit::lowbit
