// SPDX-License-Identifier: Apache-2.0
// Product of two tensors of float32 whose codes and scales are computed first: each row of the
// first operand and each column of the second one has a scale.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "_native/isa/levels.hpp"
#include "_native/threads/workers.hpp"
#include "dynamic_scale.hpp"
#include "product_kernels.hpp"

namespace anybit::lowbit {

class DynamicMatMul {
 public:
  struct Operand {
    ScaleConstants constants;
    std::int64_t lowest = 0, highest = 0;  // codes
    bool whole = false;                    // whether all of the tensor has one scale
  };

  // Matrices of an array: each has rows that are contiguous.
  struct Matrices {
    std::int64_t numbers = 0;            // of the array
    std::int64_t row = 0;                // from one row to the next
    std::vector<std::int64_t> of_group;  // start of the matrix of each group
  };
  struct Sizes {
    std::int64_t rows = 0, depth = 0, columns = 0;
    Matrices first, second, y;
  };

  // The matrices of the second operand are columns x depth if it is transposed. Throws Error for
  // constants or codes that no quantizer has.
  DynamicMatMul(const Operand& first, const Operand& second, bool transposed, float factor,
                Level level);
  ~DynamicMatMul();

  // y = ((float(sum of code * code) * s) * t) * factor, where s <= t are both scales: of each
  // group, rows x columns. All numbers of arrays with one scale are read.
  void run(const float* first, const float* second, float* y, const Sizes& sizes,
           const Workers& workers) const;

 private:
  struct Room;
  struct Run;
  class Loan;

  const Operand first_, second_;
  const bool transposed_;
  const float factor_;
  const ElementLoops& loops_;
  const ProductKernels& kernels_;
  std::int64_t most_depth_ = 0;  // of sums in 32 bits
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Room>> spare_;
};

}  // namespace anybit::lowbit
