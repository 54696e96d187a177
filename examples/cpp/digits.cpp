// SPDX-License-Identifier: Apache-2.0
// Digits in 4 bits, without Python: digits MODEL LIBRARY IMAGES
//
// LIBRARY is anybit's custom operator library, IMAGES a NumPy file (.npy) of 8x8 float32 images.
// Prints the predicted digit and its score per image.
//
// This needs no headers of ONNX Runtime: its C API is a table of functions with stable indices.
// With onnxruntime_c_api.h, `call<run>(...)` is `api->Run(...)`.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

struct ApiBase {
  void* const* (*get_api)(std::uint32_t version);
  const char* (*get_version)();
};
extern "C" const ApiBase* OrtGetApiBase();

namespace {

#ifdef _WIN32
using Path = std::wstring;
#else
using Path = std::string;
#endif

constexpr std::uint32_t api_version = 17;
constexpr std::int64_t pixels = 64, digits = 10;

enum Place {
  get_error_message = 2,
  create_env = 3,
  create_session = 7,
  run = 9,
  create_session_options = 10,
  create_tensor = 49,
  get_tensor_data = 51,
  create_cpu_memory_info = 69,
  register_custom_ops_library = 228,
};

void* const* const api = OrtGetApiBase()->get_api(api_version);

template <Place place, class... Arguments>
void call(Arguments... arguments) {
  void* const status = reinterpret_cast<void* (*)(Arguments...)>(api[place])(arguments...);
  if (status == nullptr) return;
  throw std::runtime_error(
      reinterpret_cast<const char* (*)(const void*)>(api[get_error_message])(status));
}

std::vector<float> images_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  // Format: eight bytes of magic, two bytes of header length, the header, the values.
  if (bytes.size() < 10) throw std::runtime_error(std::string(path) + " is not an .npy file");
  const std::size_t start = 10 + static_cast<unsigned char>(bytes[8]) +
                            256 * static_cast<std::size_t>(static_cast<unsigned char>(bytes[9]));
  if (bytes.size() < start) throw std::runtime_error(std::string(path) + " is not an .npy file");
  std::vector<float> images((bytes.size() - start) / sizeof(float));
  std::copy_n(bytes.data() + start, images.size() * sizeof(float),
              reinterpret_cast<char*>(images.data()));
  return images;
}

void show(const Path& model, const Path& library, std::vector<float> images) {
  if (api == nullptr) throw std::runtime_error("ONNX Runtime 1.17 or newer is needed");
  void *env = nullptr, *options = nullptr, *session = nullptr, *memory = nullptr;
  call<create_env>(/* warnings */ 2, "digits", &env);
  call<create_session_options>(&options);
  call<register_custom_ops_library>(options, library.c_str());
  call<create_session>(env, model.c_str(), options, &session);
  call<create_cpu_memory_info>(/* arena */ 1, /* default */ 0, &memory);

  const std::int64_t rows = static_cast<std::int64_t>(images.size()) / pixels;
  const std::int64_t shape[] = {rows, 8, 8};
  void *x = nullptr, *y = nullptr;
  float* scores = nullptr;
  const char *const inputs[] = {"x"}, *const outputs[] = {"y"};
  const std::size_t one = 1;
  call<create_tensor>(memory, images.data(), images.size() * sizeof(float), &shape[0],
                      std::size(shape), /* float32 */ 1, &x);
  call<run>(session, static_cast<void*>(nullptr), &inputs[0], &x, one, &outputs[0], one, &y);
  call<get_tensor_data>(y, &scores);
  for (std::int64_t row = 0; row < rows; ++row, scores += digits) {
    const float* const best = std::max_element(scores, scores + digits);
    std::printf("%d %.6f\n", static_cast<int>(best - scores), static_cast<double>(*best));
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) return std::fputs("digits MODEL LIBRARY IMAGES\n", stderr), 2;
  const auto path = [](const std::string& text) { return Path(text.begin(), text.end()); };
  try {
    show(path(words[1]), path(words[2]), images_of(words[3]));
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
