// SPDX-License-Identifier: Apache-2.0
#include "testing/check.hpp"

int main(int argc, char** argv) { return check::run(argc, argv); }
