// Runs SavedModels as TensorFlow Serving does, without its server:
//
//   serve replay REQUESTS RESPONSES MODEL...
//     Answers the recorded requests one by one, as the server does with the warm-up file before it serves a version.
//     The version label of a request is the index of its MODEL, from 0; without a label it is for the first MODEL.
//     RESPONSES contains a PredictResponse for each request. It is empty if the request failed; the reason is printed.
//     "loaded_kib" is the memory in use after models and requests are loaded, before the first answer. "peak_kib" is
//     the peak memory from then on.
//
//   serve load REQUESTS RESPONSES CLIENTS THREADS ROUNDS NUMBER SECONDS MODEL...
//     The same. Then THREADS clients repeat the requests recorded in CLIENTS in random order. Every answer must equal
//     the first answer to the same request, bit for bit. There are ROUNDS rounds, each with at least NUMBER answers and
//     SECONDS seconds. "after_rounds_kib" is the memory in use after each round, when no request is pending.
//
// Both commands print a JSON object with their counts and measurements.
//
// The program is one translation unit, because most of the compile time is for TensorFlow's headers.

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

absl::Status Replay(const Models& models, const std::vector<Request>& requests, const std::string& path) {
  const long loaded = ResidentKib();
  ForgetPeak();
  std::vector<std::string> responses;
  int failed = 0;
  for (const Request& request : requests) {
    const absl::StatusOr<NamedTensors> outputs = models.Run(request);
    if (!outputs.ok()) {
      std::cerr << "request " << responses.size() << ": " << outputs.status() << "\n";
      ++failed;
    }
    responses.push_back(outputs.ok() ? EncodeResponse(*outputs) : "");
  }
  TF_RETURN_IF_ERROR(WriteRecords(path, responses));
  std::cout << "\"requests\": " << requests.size() << ", \"failed\": " << failed << ", \"loaded_kib\": " << loaded
            << ", \"peak_kib\": " << StatusKib("VmHWM");
  return absl::OkStatus();
}

struct Counts {
  std::atomic<long> answered{0}, different{0}, failed{0};
  long All() const { return answered + different + failed; }
};

// One client. It stops when there are enough answers and the time is over.
void Send(const Models& models, const std::vector<Request>& requests, const std::vector<std::string>& first_responses,
          unsigned seed, long enough, Clock::time_point end, Counts& counts) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<size_t> any(0, requests.size() - 1);
  while (counts.All() < enough || Clock::now() < end) {
    const size_t i = any(random);
    const absl::StatusOr<NamedTensors> outputs = models.Run(requests[i]);
    if (!outputs.ok()) {
      if (counts.failed++ == 0) std::cerr << "request " << i << ": " << outputs.status() << "\n";
    } else if (EncodeResponse(*outputs) != first_responses[i]) {
      ++counts.different;
    } else {
      ++counts.answered;
    }
  }
}

absl::Status Load(const Models& models, const std::vector<Request>& requests, int num_threads, int num_rounds,
                  int number, std::chrono::duration<double> duration) {
  std::vector<std::string> first_responses;
  for (const Request& request : requests) {
    TF_ASSIGN_OR_RETURN(const NamedTensors outputs, models.Run(request));
    first_responses.push_back(EncodeResponse(outputs));
  }
  Counts counts;
  std::vector<long> after_rounds;
  for (int round = 0; round < num_rounds; ++round) {
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(duration);
    const long enough = counts.All() + number;
    std::vector<std::thread> clients;
    for (int i = 0; i < num_threads; ++i) {
      clients.emplace_back(Send, std::cref(models), std::cref(requests), std::cref(first_responses),
                           round * num_threads + i, enough, end, std::ref(counts));
    }
    for (std::thread& client : clients) client.join();
    after_rounds.push_back(ResidentKib());
  }
  std::cout << ", \"answered\": " << counts.answered << ", \"different\": " << counts.different
            << ", \"failed_under_load\": " << counts.failed << ", \"after_rounds_kib\": ["
            << absl::StrJoin(after_rounds, ", ") << "]";
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& arguments) {
  const bool is_load = !arguments.empty() && arguments[0] == "load";
  const size_t num_options = is_load ? 8 : 3;
  if (arguments.size() <= num_options || (!is_load && arguments[0] != "replay")) {
    return absl::InvalidArgumentError(
        "serve replay REQUESTS RESPONSES MODEL..., or serve load REQUESTS RESPONSES CLIENTS THREADS ROUNDS NUMBER "
        "SECONDS MODEL...");
  }
  Models models;
  TF_RETURN_IF_ERROR(models.Load({arguments.begin() + num_options, arguments.end()}));
  TF_ASSIGN_OR_RETURN(const std::vector<Request> requests, ReadRequests(arguments[1]));
  if (requests.empty()) return absl::InvalidArgumentError("There are no requests.");
  std::cout << "{";
  TF_RETURN_IF_ERROR(Replay(models, requests, arguments[2]));
  if (is_load) {
    TF_ASSIGN_OR_RETURN(const std::vector<Request> of_clients, ReadRequests(arguments[3]));
    TF_RETURN_IF_ERROR(Load(models, of_clients, std::stoi(arguments[4]), std::stoi(arguments[5]),
                            std::stoi(arguments[6]), std::chrono::duration<double>(std::stod(arguments[7]))));
  }
  std::cout << "}" << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace serving

int main(int argc, char** argv) {
  const absl::Status status = serving::Main(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << status << std::endl;
  return EXIT_FAILURE;
}
