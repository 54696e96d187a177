// SPDX-License-Identifier: Apache-2.0
// Lines for epilogues that replay float32 steps and round.
#pragma once
#include "packed_epilogue.hpp"

namespace anybit::lowbit {

// Replaces the steps of a rounded epilogue by one multiplication and one addition where the result
// is provably not close to a tie; elsewhere the steps are replayed. Results do not change.
void fit_rounded_lines(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels);

}  // namespace anybit::lowbit
