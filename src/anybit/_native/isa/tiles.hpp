// SPDX-License-Identifier: Apache-2.0
// AMX tiles, which Linux enables on request for a process, its threads and its children.
#pragma once

namespace anybit {

// Requests tiles, and returns whether the process has them. They enlarge signal frames, so only
// callers that compute with tiles request them.
bool gets_tiles();

}  // namespace anybit
