// SPDX-License-Identifier: Apache-2.0
#include "stay_loaded.hpp"

#if defined(_WIN32)
#include <windows.h>
#elif defined(__APPLE__)
#include <dlfcn.h>
#endif

namespace anybit::ort {

void stay_loaded() {
#if defined(_WIN32)
  HMODULE self = nullptr;
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
                     reinterpret_cast<LPCWSTR>(&stay_loaded), &self);
#elif defined(__APPLE__)
  Dl_info self;
  if (dladdr(reinterpret_cast<const void*>(&stay_loaded), &self) != 0)
    dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
#endif
}

}  // namespace anybit::ort
