// SPDX-License-Identifier: Apache-2.0
// ISA levels that the programs of this folder test.
#pragma once

#include <string_view>

constexpr std::string_view all_levels[] = {"baseline", "dotprod",    "avx2",          "avxvnni",
                                           "avx512",   "avx512vnni", "avx512vpopcnt", "amx"};
