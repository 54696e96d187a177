// SPDX-License-Identifier: Apache-2.0
// Where the tensors of a program lie: each as most of its readers want it, in memory that is used
// again as soon as nobody reads what was there.
#pragma once

#include <vector>

#include "_native/isa/levels.hpp"
#include "program.hpp"
#include "stage.hpp"

namespace anybit::lowbit {

// The number of a tensor or a port, to look it up.
inline std::size_t place(std::int64_t number) { return static_cast<std::size_t>(number); }

struct Plan {
  std::vector<Place> tensors;
  std::int64_t rows = 1;   // of the batch, that are worked on together
  std::int64_t bytes = 0;  // of all tensors for so many rows

  // Throws Error if a row needs more memory than is reasonable.
  Plan(const Program& program, Level level);

 private:
  void choose_storage(const Program& program, Level level);
  void lay_out(const Program& program);
};

// A product as its kernel is told of it.
ProductTask task_of(const Program& program, const Product& product);

}  // namespace anybit::lowbit
