# SPDX-License-Identifier: Apache-2.0
# find_package(anybit_onnxruntime) gives the target anybit::onnxruntime, a library that programs
# load and do not link: $<TARGET_FILE:anybit::onnxruntime> is the file to copy beside a program, and
# to give to RegisterCustomOpsLibrary.
if(NOT TARGET anybit::onnxruntime)
  add_library(anybit::onnxruntime MODULE IMPORTED)
  get_filename_component(_anybit "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
  file(GLOB _anybit_library "${_anybit}/lib/anybit_onnxruntime.*")
  set_target_properties(anybit::onnxruntime PROPERTIES
    IMPORTED_LOCATION "${_anybit_library}"
    INTERFACE_INCLUDE_DIRECTORIES "${_anybit}/include")
  unset(_anybit)
  unset(_anybit_library)
endif()
