// SPDX-License-Identifier: Apache-2.0
// The gradient's loops for an instruction set. In a file of its own, so that a library without
// gradients links none of them.
#include <algorithm>
#include <iterator>

#include "gradient_kernels.hpp"

namespace anybit {

namespace baseline {
extern const GradientSet gradient_set;
}
#ifdef ANYBIT_X86_KERNELS
namespace avx2 {
extern const GradientSet gradient_set;
}
namespace avx512 {
extern const GradientSet gradient_set;
}
#endif

namespace {

const GradientSet* const sets[] = {
#ifdef ANYBIT_X86_KERNELS
    &avx512::gradient_set, &avx2::gradient_set,
#endif
    &baseline::gradient_set};

}  // namespace

const GradientSet& gradient_kernels(const KernelSet& set) {
  return **std::find_if(std::begin(sets), std::end(sets),
                        [&](const GradientSet* candidate) { return candidate->name == set.name; });
}

}  // namespace anybit
