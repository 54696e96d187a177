// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace anybit::ort {

// Keeps this library loaded until the process ends: the host has pointers into it. It would unload
// it with the last session otherwise. Linkers for Linux say so in the file itself.
void stay_loaded();

}  // namespace anybit::ort
