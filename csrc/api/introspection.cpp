// What this library was built with, for Python through ctypes: JSON text, valid until the process
// ends (manifest) or until the thread's next call (attributes). Never throws: a failure is the JSON
// object {"error": "..."}.
#include <cuda_runtime_api.h>

#include <exception>
#include <string>

#include "api/dispatch.hpp"

#define DASH_TEXT_OF(value) #value
#define DASH_TEXT(macro) DASH_TEXT_OF(macro)
#define DASH_EXPORT extern "C" __attribute__((visibility("default")))

namespace dash::api {
namespace {

std::string quoted(std::string const& text) {
  std::string result = "\"";
  for (char const c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + "\"";
}

template <class Kernels>
void append_kernels(std::string& json, char const* pass, Kernels const& kernels) {
  for (auto const& kernel : kernels) {
    json += json.back() == '[' ? "" : ", ";
    json += "{\"name\": " + quoted(kernel.name) + ", \"pass\": " + quoted(pass) +
            ", \"dtype\": " + quoted(dtype_word(kernel.key.dtype)) +
            ", \"head_dim\": " + std::to_string(kernel.key.head_dim) +
            ", \"variant\": " + quoted(variant_word(kernel.key.variant)) + "}";
  }
}

std::string manifest_json() {
  std::string json = "{\"version\": " + quoted(DASH_TEXT(DASH_VERSION)) +
                     ", \"cuda\": \"" + std::to_string(CUDART_VERSION / 1000) + "." +
                     std::to_string(CUDART_VERSION % 1000 / 10) + "\"" +
                     ", \"cutlass\": " + quoted(DASH_TEXT(DASH_CUTLASS_VERSION)) +
                     ", \"kernels\": [";
  append_kernels(json, "fwd", forward_kernels());
  append_kernels(json, "bwd", backward_kernels());
  return json + "]}";
}

std::string attributes_json(std::vector<KernelAttributes> const& stages) {
  std::string json = "[";
  for (KernelAttributes const& stage : stages) {
    json += json.back() == '[' ? "" : ", ";
    json += "{\"stage\": " + quoted(stage.stage) +
            ", \"registers\": " + std::to_string(stage.registers) +
            ", \"shared_bytes\": " + std::to_string(stage.shared_bytes) +
            ", \"local_bytes\": " + std::to_string(stage.local_bytes) + "}";
  }
  return json + "]";
}

template <class Kernels>
bool append_attributes_of(std::string& json, std::string const& name, Kernels const& kernels) {
  for (auto const& kernel : kernels) {
    if (name == kernel.name) {
      json = attributes_json(kernel.attributes());
      return true;
    }
  }
  return false;
}

std::string attributes_of(std::string const& name) {
  std::string json;
  try {
    if (append_attributes_of(json, name, forward_kernels()) ||
        append_attributes_of(json, name, backward_kernels())) {
      return json;
    }
    return "{\"error\": " + quoted("no kernel is named " + name) + "}";
  } catch (std::exception const& error) {
    return "{\"error\": " + quoted(error.what()) + "}";
  }
}

}  // namespace
}  // namespace dash::api

DASH_EXPORT char const* dash_build_manifest() {
  static std::string const json = dash::api::manifest_json();
  return json.c_str();
}

DASH_EXPORT char const* dash_kernel_attributes(char const* kernel_name) {
  thread_local std::string json;
  json = dash::api::attributes_of(kernel_name);
  return json.c_str();
}
