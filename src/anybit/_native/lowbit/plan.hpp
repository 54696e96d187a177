// SPDX-License-Identifier: Apache-2.0
// Memory plan of a program: the coding of each tensor by the votes of its readers, and offsets that
// reuse the memory of dead tensors.
#pragma once

#include <vector>

#include "_native/isa/levels.hpp"
#include "program.hpp"
#include "stage.hpp"

namespace anybit::lowbit {

// Index of a tensor or a port.
inline std::size_t place(std::int64_t number) { return static_cast<std::size_t>(number); }

struct Plan {
  std::vector<Place> tensors;
  std::vector<FloatPlace> floats;        // that are neither inputs nor outputs
  std::int64_t rows = 1;                 // of the batch, run together
  std::int64_t bytes = 0;                // of all tensors for these rows
  std::vector<std::size_t> spreads;      // per instruction, see find_spreads
  std::vector<std::size_t> computed_by;  // per instruction: itself, or the Product that does

  // Throws Error if a row needs more memory than is reasonable.
  Plan(const Program& program, Level level);

 private:
  void choose_storage(const Program& program, Level level);
  void lay_out(const Program& program);
};

// Returns a product with its tensors.
ProductTask task_of(const Program& program, const Product& product);

// Returns the phases of a product without the zeros of a Gather, whose source becomes that of the
// task.
SpreadProduct phases_of(const Program& program, const Gather& gather, ProductTask& task);

}  // namespace anybit::lowbit
