// SPDX-License-Identifier: Apache-2.0
// Thresholds that equal a multiplication, an addition and a shift for all accumulators.
#pragma once

#include <cstdint>
#include <vector>

#include "program.hpp"

namespace anybit::lowbit {

class ScaledSteps {
 public:
  ScaledSteps(const Scaled& epilogue, std::int64_t levels);

  Thresholds epilogue() const { return {directions_, thresholds_}; }

 private:
  std::vector<std::int32_t> directions_, thresholds_;
};

}  // namespace anybit::lowbit
