// A small random model in a GGUF file, for tests without a trained one.
#pragma once

namespace test {

// Llama architecture, 3 layers, 4 query heads on 2 key heads of 64, 512 tokens without text. Ends the program on failure.
void write_tiny_model(const char * path);

} // namespace test
