// SPDX-License-Identifier: Apache-2.0
// The registry: adapters and kernels loop over this list and name no operator.
#pragma once

#include "bipolar_quant.hpp"
#include "block_quant.hpp"
#include "dynamic_dequantize.hpp"
#include "dynamic_quantize.hpp"
#include "float_quant.hpp"
#include "int_quant.hpp"
#include "trunc.hpp"
#include "trunc_v1.hpp"

namespace anybit {

using Operators = TypeList<IntQuant, FloatQuant, Trunc, TruncV1, BipolarQuant, DynamicQuantize,
                           DynamicDequantize, BlockQuant>;

}  // namespace anybit
