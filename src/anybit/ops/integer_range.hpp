// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "powers.hpp"

namespace anybit {

template <class T>
struct IntegerRange {
  T lowest;
  T highest;
};

// The lowest and the highest integer of that many bits, rounded to T.
template <class T>
[[gnu::always_inline]] inline IntegerRange<T> integer_range(double bitwidth, bool is_signed,
                                                            bool narrow) {
  if (is_signed) {
    const T magnitude = power_of_two<T>(bitwidth - 1);
    return {-magnitude + T(narrow), magnitude - T(1)};
  }
  return {T(0), power_of_two<T>(bitwidth) - T(narrow ? 2 : 1)};
}

}  // namespace anybit
