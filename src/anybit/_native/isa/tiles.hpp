// SPDX-License-Identifier: Apache-2.0
// AMX's tiles, which Linux gives to a process that asks for them, and to its threads and children.
#pragma once

namespace anybit {

// Asks for them; whether the process has them now. Signals of one that has them take larger stacks,
// so only who computes with tiles asks.
bool gets_tiles();

}  // namespace anybit
