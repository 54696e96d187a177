// SPDX-License-Identifier: Apache-2.0
// A curve that all channels of a piecewise constant epilogue share.
#pragma once
#include "packed_epilogue.hpp"

namespace anybit::lowbit {

// Replaces the search of pieces by a curve in float32 where the curve provably rounds to the index
// of the piece; elsewhere the pieces are searched. Results do not change. Pieces without a common
// curve are left alone.
void fit_curve(PackedEpilogue& epilogue, std::int64_t channels);

}  // namespace anybit::lowbit
