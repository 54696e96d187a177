// SPDX-License-Identifier: Apache-2.0
// Equality of the operator library's results with those of the machine of write_sessions.py, bit by
// bit; the library must stay loaded afterwards. Runs on any system that has ONNX Runtime:
//   sessions ONNXRUNTIME LIBRARY FILE
#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

#ifdef _WIN32
using Path = std::wstring;
void* symbol_of(const Path& library, const char* name) {
  const HMODULE module = LoadLibraryW(library.c_str());
  return module == nullptr ? nullptr : reinterpret_cast<void*>(GetProcAddress(module, name));
}
bool is_loaded(const Path& library) { return GetModuleHandleW(library.c_str()) != nullptr; }
#else
using Path = std::string;
void* symbol_of(const Path& library, const char* name) {
  void* const library_handle = dlopen(library.c_str(), RTLD_NOW);
  return library_handle == nullptr ? nullptr : dlsym(library_handle, name);
}
bool is_loaded(const Path& library) {
  return dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
}
#endif

struct ApiBase {
  void* const* (*get_api)(std::uint32_t version);
  const char* (*get_version)();
};

// Indices in ONNX Runtime's function table.
enum Place {
  get_error_message = 2,
  create_env = 3,
  create_session_from_array = 8,
  run = 9,
  create_session_options = 10,
  set_log_severity = 22,
  set_threads = 24,
  create_tensor = 49,
  get_tensor_data = 51,
  get_type = 60,
  get_rank = 61,
  get_sizes = 62,
  get_type_and_shape = 65,
  create_cpu_memory_info = 69,
  release_env = 92,
  release_status = 93,
  release_session = 95,
  release_tensor = 96,
  release_type_and_shape = 99,
  release_session_options = 100,
  register_custom_ops_library = 228,
};
void* const* api = nullptr;

// Error with a message of ONNX Runtime.
struct Refused : std::runtime_error {
  using runtime_error::runtime_error;
};

void release(Place place, void* handle) { reinterpret_cast<void (*)(void*)>(api[place])(handle); }

template <Place place, class... Arguments>
void call(Arguments... arguments) {
  void* const status = reinterpret_cast<void* (*)(Arguments...)>(api[place])(arguments...);
  if (status == nullptr) return;
  const Refused refused(
      reinterpret_cast<const char* (*)(const void*)>(api[get_error_message])(status));
  release(release_status, status);
  throw refused;
}

// A handle that is released with its scope.
struct Held {
  Place place;
  void* handle = nullptr;
  explicit Held(Place released_by) : place(released_by) {}
  Held(Held&& other) noexcept : place(other.place), handle(std::exchange(other.handle, nullptr)) {}
  ~Held() {
    if (handle != nullptr) release(place, handle);
  }
};

struct Tensor {
  std::int64_t type = 0;
  std::vector<std::int64_t> sizes;
  std::string bytes;
};

// Content of the file of write_sessions.py.
class Reader {
 public:
  explicit Reader(const char* path) : file_(path, std::ios::binary) {
    if (!file_) throw std::runtime_error(std::string("cannot read ") + path);
  }
  bool at_end() { return file_.peek() == std::ifstream::traits_type::eof(); }
  std::uint64_t number() {
    std::uint64_t value = 0;
    take(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string text() {
    std::string read(number(), '\0');
    take(read.data(), read.size());
    return read;
  }
  Tensor tensor() {
    Tensor read;
    read.type = static_cast<std::int64_t>(number());
    const std::string sizes = text();
    read.sizes.resize(sizes.size() / sizeof(std::int64_t));
    std::memcpy(read.sizes.data(), sizes.data(), sizes.size());
    read.bytes = text();
    return read;
  }

 private:
  void take(char* to, std::size_t count) {
    if (!file_.read(to, static_cast<std::streamsize>(count)))
      throw std::runtime_error("the file ends too early");
  }
  std::ifstream file_;
};

struct Run {
  std::string name, model;
  std::vector<std::string> inputs, outputs;
  std::vector<Tensor> feeds, expected;
  std::string error;
};

Run run_from(Reader& reader) {
  Run read{reader.text(), reader.text(), {}, {}, {}, {}, {}};
  for (std::uint64_t left = reader.number(); left > 0; --left) {
    read.inputs.push_back(reader.text());
    read.feeds.push_back(reader.tensor());
  }
  for (std::uint64_t left = reader.number(); left > 0; --left)
    read.outputs.push_back(reader.text());
  read.error = reader.text();
  for (std::size_t i = 0; read.error.empty() && i < read.outputs.size(); ++i)
    read.expected.push_back(reader.tensor());
  return read;
}

// Bit layout of a type; integers have no exponent bits.
struct Layout {
  std::size_t bytes;
  int exponent;
  int fraction;
};

Layout layout_of(std::int64_t type) {
  switch (type) {
    case 1:
      return {4, 8, 23};
    case 10:
      return {2, 5, 10};
    case 11:
      return {8, 11, 52};
    case 16:
      return {2, 8, 7};
    default:
      return {1, 0, 0};
  }
}

bool is_nan(std::uint64_t bits, const Layout& layout) {
  if (layout.exponent == 0) return false;
  const std::uint64_t infinity = ((std::uint64_t{1} << layout.exponent) - 1) << layout.fraction;
  return (bits & ((std::uint64_t{1} << (layout.exponent + layout.fraction)) - 1)) > infinity;
}

// Compares bit by bit; all NaNs are equal.
std::size_t differing(const char* got, const std::string& expected, const Layout& layout) {
  std::size_t count = 0;
  for (std::size_t at = 0; at + layout.bytes <= expected.size(); at += layout.bytes) {
    std::uint64_t one = 0, other = 0;
    std::memcpy(&one, got + at, layout.bytes);
    std::memcpy(&other, &expected[at], layout.bytes);
    count += one != other && !(is_nan(one, layout) && is_nan(other, layout));
  }
  return count;
}

// Returns the fault of a result; empty if there is none.
std::string fault_of(void* tensor, const Tensor& expected) {
  Held about(release_type_and_shape);
  call<get_type_and_shape>(tensor, &about.handle);
  std::int32_t type = 0;
  call<get_type>(about.handle, &type);
  if (type != expected.type) return "has type " + std::to_string(type);
  std::size_t rank = 0;
  call<get_rank>(about.handle, &rank);
  std::vector<std::int64_t> sizes(rank);
  call<get_sizes>(about.handle, sizes.data(), rank);
  if (sizes != expected.sizes) return "has another shape";
  char* data = nullptr;
  call<get_tensor_data>(tensor, &data);
  const std::size_t count = differing(data, expected.bytes, layout_of(type));
  return count == 0 ? "" : std::to_string(count) + " elements differ";
}

class Sessions {
 public:
  explicit Sessions(const Path& library) {
    call<create_env>(/* fatal */ 4, "sessions", &env_.handle);
    call<create_session_options>(&options_.handle);
    call<set_log_severity>(options_.handle, 4);
    call<set_threads>(options_.handle, 1);
    call<register_custom_ops_library>(options_.handle, library.c_str());
    call<create_cpu_memory_info>(/* arena */ 1, /* default */ 0, &memory_);
  }

  std::string fault(Run& expected_run) const {
    try {
      const std::vector<Held> got = results(expected_run);
      if (!expected_run.error.empty()) return "was not refused";
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::string fault = fault_of(got[i].handle, expected_run.expected[i]);
        if (!fault.empty()) return expected_run.outputs[i] + ": " + fault;
      }
      return "";
    } catch (const Refused& refused) {
      const std::string_view says = refused.what();
      if (!expected_run.error.empty() && expected_run.error.find(says) != std::string::npos)
        return "";
      return "says \"" + std::string(says) + "\", not \"" + expected_run.error + '"';
    }
  }

 private:
  std::vector<Held> results(Run& expected_run) const {
    Held session(release_session);
    call<create_session_from_array>(env_.handle,
                                    static_cast<const void*>(expected_run.model.data()),
                                    expected_run.model.size(), options_.handle, &session.handle);
    std::vector<Held> held;
    std::vector<void*> values, got(expected_run.outputs.size());
    for (Tensor& item : expected_run.feeds) {
      held.emplace_back(release_tensor);
      call<create_tensor>(memory_, static_cast<void*>(item.bytes.data()), item.bytes.size(),
                          item.sizes.data(), item.sizes.size(), static_cast<int>(item.type),
                          &held.back().handle);
      values.push_back(held.back().handle);
    }
    const std::vector<const char*> inputs = pointers(expected_run.inputs);
    const std::vector<const char*> outputs = pointers(expected_run.outputs);
    call<run>(session.handle, static_cast<void*>(nullptr), inputs.data(), values.data(),
              values.size(), outputs.data(), outputs.size(), got.data());
    std::vector<Held> results;
    for (void* item : got) results.emplace_back(release_tensor).handle = item;
    return results;
  }

  static std::vector<const char*> pointers(const std::vector<std::string>& names) {
    std::vector<const char*> pointers_to_names;
    for (const std::string& name : names) pointers_to_names.push_back(name.c_str());
    return pointers_to_names;
  }

  Held env_{release_env}, options_{release_session_options};
  void* memory_ = nullptr;
};

int tried(const Path& runtime, const Path& library, const char* file) {
  const auto base = reinterpret_cast<const ApiBase* (*)()>(symbol_of(runtime, "OrtGetApiBase"));
  if (base == nullptr) throw std::runtime_error("ONNX Runtime cannot be loaded");
  api = base()->get_api(17);
  int passed = 0, failed = 0;
  const auto count = [&](const std::string& name, const std::string& fault) {
    if (fault.empty()) ++passed;
    else if (++failed <= 20) std::printf("%s: %s\n", name.c_str(), fault.c_str());
  };
  std::optional<Sessions> sessions(library);
  for (Reader reader(file); !reader.at_end();) {
    Run expected_run = run_from(reader);
    count(expected_run.name, sessions->fault(expected_run));
  }
  sessions.reset();
  count("afterwards", is_loaded(library) ? "" : "the library is gone");
  std::printf("ONNX Runtime %s: %d passed, %d failed\n", base()->get_version(), passed, failed);
  return failed > 0 || passed == 0;
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) return std::fputs("sessions ONNXRUNTIME LIBRARY FILE\n", stderr), 2;
  const auto path = [](const std::string& text) { return Path(text.begin(), text.end()); };
  try {
    return tried(path(words[1]), path(words[2]), words[3]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
