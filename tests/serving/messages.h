// The messages of TensorFlow Serving for a recorded request and its answer.
//
// Fields are read and written by their numbers in prediction_log.proto, predict.proto and model.proto, because
// TensorFlow's package contains the class of TensorProto, but not the classes of the messages around it.
#ifndef TESTS_SERVING_MESSAGES_H_
#define TESTS_SERVING_MESSAGES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/lib/io/record_reader.h"
#include "tensorflow/core/lib/io/record_writer.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"

namespace serving {

using NamedTensors = std::map<std::string, tensorflow::Tensor>;

// The fields of a PredictRequest that are used.
struct Request {
  std::string signature;
  std::string version_label;  // Index of the model.
  NamedTensors inputs;
};

namespace wire {

using ::google::protobuf::internal::WireFormatLite;

constexpr int kPredictionLogPredictLog = 6;
constexpr int kPredictLogRequest = 1;
constexpr int kPredictRequestModelSpec = 1;
constexpr int kPredictRequestInputs = 2;
constexpr int kPredictResponseOutputs = 1;
constexpr int kModelSpecSignatureName = 3;
constexpr int kModelSpecVersionLabel = 4;
constexpr int kMapKey = 1;
constexpr int kMapValue = 2;

inline absl::Status Damaged() { return absl::DataLossError("A message ends before its last field does."); }

// {number: contents} of the string, bytes and message fields of an encoded message. Other fields are skipped.
inline absl::StatusOr<std::multimap<int, std::string>> Fields(absl::string_view message) {
  google::protobuf::io::CodedInputStream input(reinterpret_cast<const uint8_t*>(message.data()),
                                               static_cast<int>(message.size()));
  std::multimap<int, std::string> fields;
  while (const uint32_t tag = input.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) return Damaged();
      continue;
    }
    uint32_t size;
    std::string contents;
    if (!input.ReadVarint32(&size) || !input.ReadString(&contents, static_cast<int>(size))) return Damaged();
    fields.emplace(WireFormatLite::GetTagFieldNumber(tag), std::move(contents));
  }
  if (!input.ConsumedEntireMessage()) return Damaged();
  return fields;
}

// The contents of one field, or an empty string if it is missing, because protobuf omits empty fields.
inline absl::StatusOr<std::string> Field(absl::string_view message, int number) {
  TF_ASSIGN_OR_RETURN(const auto fields, Fields(message));
  const auto found = fields.find(number);
  return found == fields.end() ? std::string() : found->second;
}

inline std::string EncodeField(int number, absl::string_view contents) {
  std::string encoded;
  {
    google::protobuf::io::StringOutputStream stream(&encoded);
    google::protobuf::io::CodedOutputStream output(&stream);
    output.WriteTag(WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    output.WriteVarint32(static_cast<uint32_t>(contents.size()));
    output.WriteRaw(contents.data(), static_cast<int>(contents.size()));
  }
  return encoded;
}

inline absl::StatusOr<tensorflow::Tensor> DecodeTensor(const std::string& message) {
  tensorflow::TensorProto proto;
  tensorflow::Tensor tensor;
  if (!proto.ParseFromString(message) || !tensor.FromProto(proto)) {
    return absl::InvalidArgumentError("An input is not a valid TensorProto.");
  }
  return tensor;
}

inline absl::StatusOr<Request> DecodeRequest(absl::string_view prediction_log) {
  TF_ASSIGN_OR_RETURN(const std::string predict_log, Field(prediction_log, kPredictionLogPredictLog));
  TF_ASSIGN_OR_RETURN(const std::string predict_request, Field(predict_log, kPredictLogRequest));
  if (predict_request.empty()) return absl::InvalidArgumentError("A PredictionLog holds no PredictRequest.");
  TF_ASSIGN_OR_RETURN(const auto fields, Fields(predict_request));
  Request request;
  for (const auto& [number, contents] : fields) {
    if (number == kPredictRequestModelSpec) {
      TF_ASSIGN_OR_RETURN(request.signature, Field(contents, kModelSpecSignatureName));
      TF_ASSIGN_OR_RETURN(request.version_label, Field(contents, kModelSpecVersionLabel));
    } else if (number == kPredictRequestInputs) {
      TF_ASSIGN_OR_RETURN(const std::string name, Field(contents, kMapKey));
      TF_ASSIGN_OR_RETURN(const std::string tensor, Field(contents, kMapValue));
      TF_ASSIGN_OR_RETURN(request.inputs[name], DecodeTensor(tensor));
    }
  }
  return request;
}

}  // namespace wire

// Reads TFRecords of PredictionLog from a file such as tf_serving_warmup_requests. All must be predictions.
inline absl::StatusOr<std::vector<Request>> ReadRequests(const std::string& path) {
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  TF_RETURN_IF_ERROR(tensorflow::Env::Default()->NewRandomAccessFile(path, &file));
  tensorflow::io::SequentialRecordReader reader(file.get());
  std::vector<Request> requests;
  for (tensorflow::tstring record;;) {
    const absl::Status status = reader.ReadRecord(&record);
    if (absl::IsOutOfRange(status)) return requests;
    TF_RETURN_IF_ERROR(status);
    TF_ASSIGN_OR_RETURN(requests.emplace_back(), wire::DecodeRequest(record));
  }
}

// An encoded PredictResponse with these outputs.
inline std::string EncodeResponse(const NamedTensors& outputs) {
  std::string response;
  for (const auto& [name, tensor] : outputs) {
    tensorflow::TensorProto proto;
    tensor.AsProtoField(&proto);  // As in the server. Python clients cannot read strings in the other form.
    const std::string entry =
        wire::EncodeField(wire::kMapKey, name) + wire::EncodeField(wire::kMapValue, proto.SerializeAsString());
    response += wire::EncodeField(wire::kPredictResponseOutputs, entry);
  }
  return response;
}

// Writes messages as TFRecords.
inline absl::Status WriteRecords(const std::string& path, const std::vector<std::string>& messages) {
  std::unique_ptr<tensorflow::WritableFile> file;
  TF_RETURN_IF_ERROR(tensorflow::Env::Default()->NewWritableFile(path, &file));
  tensorflow::io::RecordWriter writer(file.get());
  for (const std::string& message : messages) TF_RETURN_IF_ERROR(writer.WriteRecord(message));
  TF_RETURN_IF_ERROR(writer.Close());
  return file->Close();
}

}  // namespace serving

#endif  // TESTS_SERVING_MESSAGES_H_
