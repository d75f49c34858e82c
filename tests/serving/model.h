// SavedModels as TensorFlow Serving runs them.
#ifndef TESTS_SERVING_MODEL_H_
#define TESTS_SERVING_MODEL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "messages.h"
#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"

namespace serving {

// A SavedModel. Many threads may run it at once.
class Model {
 public:
  // Loads a version's folder with TensorFlow Serving's loader and tag.
  absl::Status Load(const std::string& folder) {
    return tensorflow::LoadSavedModel(tensorflow::SessionOptions(), tensorflow::RunOptions(), folder, {"serve"},
                                      &bundle_);
  }

  // Answers a request. As in the server, its inputs must have exactly the signature's names and types.
  absl::StatusOr<NamedTensors> Run(const Request& request) const {
    const auto found = bundle_.GetSignatures().find(request.signature);
    if (found == bundle_.GetSignatures().end()) {
      return absl::NotFoundError(absl::StrCat("There is no signature ", request.signature, "."));
    }
    const tensorflow::SignatureDef& signature = found->second;
    TF_RETURN_IF_ERROR(CheckInputs(request, signature));
    std::vector<std::pair<std::string, tensorflow::Tensor>> inputs;
    for (const auto& [name, tensor] : request.inputs) inputs.emplace_back(signature.inputs().at(name).name(), tensor);
    std::vector<std::string> names, nodes;
    for (const auto& [name, info] : signature.outputs()) {
      names.push_back(name);
      nodes.push_back(info.name());
    }
    std::vector<tensorflow::Tensor> values;
    TF_RETURN_IF_ERROR(bundle_.GetSession()->Run(inputs, nodes, /*target_tensor_names=*/{}, &values));
    NamedTensors outputs;
    for (size_t i = 0; i < names.size(); ++i) outputs[names[i]] = values[i];
    return outputs;
  }

 private:
  static absl::Status CheckInputs(const Request& request, const tensorflow::SignatureDef& signature) {
    bool fits = request.inputs.size() == signature.inputs().size();
    for (const auto& [name, tensor] : request.inputs) {
      const auto expected = signature.inputs().find(name);
      fits = fits && expected != signature.inputs().end() && expected->second.dtype() == tensor.dtype();
    }
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("The inputs are not those of signature ", request.signature, "."));
  }

  tensorflow::SavedModelBundleLite bundle_;
};

// Several models in one process, as a server has several versions. Many threads may run it at once.
class Models {
 public:
  absl::Status Load(const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) {
      models_.push_back(std::make_unique<Model>());
      TF_RETURN_IF_ERROR(models_.back()->Load(folder));
    }
    return absl::OkStatus();
  }

  // Runs the model whose index is the request's version label. Without a label, it runs the first model.
  absl::StatusOr<NamedTensors> Run(const Request& request) const {
    size_t place = 0;
    const bool is_number = request.version_label.empty() || absl::SimpleAtoi(request.version_label, &place);
    if (!is_number || place >= models_.size()) {
      return absl::NotFoundError(absl::StrCat("There is no model ", request.version_label, "."));
    }
    return models_[place]->Run(request);
  }

 private:
  std::vector<std::unique_ptr<Model>> models_;
};

}  // namespace serving

#endif  // TESTS_SERVING_MODEL_H_
