// Runs a SavedModel as TensorFlow Serving does, without its server:
//
//   serve replay MODEL REQUESTS RESPONSES
//     Answers the recorded requests one after the other, as the server does with the warm-up file before a version
//     goes into service. RESPONSES gets a PredictResponse for each, an empty one where the request failed; the reason
//     is printed. Exits with 1 if any failed. "loaded_kib" is the memory in use with model and requests in it, before
//     the first of them is answered, "peak_kib" the most from then on.
//
//   serve load MODEL REQUESTS THREADS ROUNDS SECONDS
//     THREADS clients send the recorded requests in any order, again and again. Every answer must be the first one to
//     the same request, to the last bit. There are ROUNDS of SECONDS each; "after_rounds_kib" is the memory in use
//     after each, when nothing is on its way.
//
// Both print a JSON object of what they counted and measured.
//
// All of it is one unit for the compiler, which takes most of its time to read TensorFlow's headers.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_join.h"
#include "memory.h"
#include "messages.h"
#include "model.h"
#include "tensorflow/core/platform/errors.h"

namespace serving {
namespace {

using Clock = std::chrono::steady_clock;

absl::Status Replay(const Model& model, const std::vector<Request>& requests, const std::string& path) {
  const long loaded = ResidentKib();
  ForgetPeak();
  std::vector<std::string> responses;
  int failed = 0;
  for (const Request& request : requests) {
    const absl::StatusOr<NamedTensors> outputs = model.Run(request);
    if (!outputs.ok()) {
      std::cerr << "request " << responses.size() << ": " << outputs.status() << "\n";
      ++failed;
    }
    responses.push_back(outputs.ok() ? EncodeResponse(*outputs) : "");
  }
  TF_RETURN_IF_ERROR(WriteRecords(path, responses));
  std::cout << "{\"requests\": " << requests.size() << ", \"failed\": " << failed << ", \"loaded_kib\": " << loaded
            << ", \"peak_kib\": " << StatusKib("VmHWM") << "}" << std::endl;
  return failed ? absl::AbortedError("Not all requests were answered.") : absl::OkStatus();
}

struct Counts {
  std::atomic<long> answered{0}, different{0}, failed{0};
};

// One client, until the time is over.
void Send(const Model& model, const std::vector<Request>& requests, const std::vector<std::string>& first_responses,
          unsigned seed, Clock::time_point end, Counts& counts) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<size_t> any(0, requests.size() - 1);
  while (Clock::now() < end) {
    const size_t i = any(random);
    const absl::StatusOr<NamedTensors> outputs = model.Run(requests[i]);
    if (!outputs.ok()) {
      if (counts.failed++ == 0) std::cerr << "request " << i << ": " << outputs.status() << "\n";
    } else if (EncodeResponse(*outputs) != first_responses[i]) {
      ++counts.different;
    } else {
      ++counts.answered;
    }
  }
}

absl::Status Load(const Model& model, const std::vector<Request>& requests, int num_threads, int num_rounds,
                  std::chrono::duration<double> duration) {
  std::vector<std::string> first_responses;
  for (const Request& request : requests) {
    TF_ASSIGN_OR_RETURN(const NamedTensors outputs, model.Run(request));
    first_responses.push_back(EncodeResponse(outputs));
  }
  Counts counts;
  std::vector<long> after_rounds;
  for (int round = 0; round < num_rounds; ++round) {
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(duration);
    std::vector<std::thread> clients;
    for (int i = 0; i < num_threads; ++i) {
      clients.emplace_back(Send, std::cref(model), std::cref(requests), std::cref(first_responses),
                           round * num_threads + i, end, std::ref(counts));
    }
    for (std::thread& client : clients) client.join();
    after_rounds.push_back(ResidentKib());
  }
  std::cout << "{\"answered\": " << counts.answered << ", \"different\": " << counts.different
            << ", \"failed\": " << counts.failed << ", \"after_rounds_kib\": [" << absl::StrJoin(after_rounds, ", ")
            << "]}" << std::endl;
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& arguments) {
  const bool is_replay = arguments.size() == 4 && arguments[0] == "replay";
  const bool is_load = arguments.size() == 6 && arguments[0] == "load";
  if (!is_replay && !is_load) {
    return absl::InvalidArgumentError(
        "serve replay MODEL REQUESTS RESPONSES, or serve load MODEL REQUESTS THREADS ROUNDS SECONDS");
  }
  Model model;
  TF_RETURN_IF_ERROR(model.Load(arguments[1]));
  TF_ASSIGN_OR_RETURN(const std::vector<Request> requests, ReadRequests(arguments[2]));
  if (requests.empty()) return absl::InvalidArgumentError("There are no requests.");
  if (is_replay) return Replay(model, requests, arguments[3]);
  return Load(model, requests, std::stoi(arguments[3]), std::stoi(arguments[4]),
              std::chrono::duration<double>(std::stod(arguments[5])));
}

}  // namespace
}  // namespace serving

int main(int argc, char** argv) {
  const absl::Status status = serving::Main(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << status << std::endl;
  return EXIT_FAILURE;
}
