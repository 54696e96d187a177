// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace anybit::ort {

// Keeps this library loaded until the process ends: the host keeps pointers into it, but would
// unload it with the last session. On Linux a linker flag does this.
void stay_loaded();

}  // namespace anybit::ort
