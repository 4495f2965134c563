# Where the library and its header are: in this repository, where cargo builds it, or in an installed tree, of whose share/iceformer
# the examples are a part. A Makefile names ROOT, the folder that examples-c lies in, and includes this for INCLUDES, ICEFORMER_LIB,
# SYSTEM_LIBS and the rule `library`.
#
# CARGO and CARGO_TARGET_DIR are respected; ICEFORMER_LIB=path skips cargo and links that archive.

# What a Rust archive needs from the system.
UNAME := $(shell uname -s)
SYSTEM := $(if $(filter Darwin,$(UNAME)),macos,$(if $(findstring MINGW,$(UNAME)),windows,linux))
SYSTEM_LIBS := $(patsubst %,-l%,$(shell sed -n "s/^$(SYSTEM) //p" $(ROOT)/ffi/system-libs.txt))

.PHONY: library
ifneq ($(wildcard $(ROOT)/Cargo.toml),)
INCLUDE = $(ROOT)/include
else
PREFIX := $(abspath $(ROOT)/../..)
INCLUDE = $(PREFIX)/include
FOUND := $(firstword $(wildcard $(PREFIX)/lib/libiceformer.a $(PREFIX)/lib64/libiceformer.a $(PREFIX)/lib/*/libiceformer.a))
ICEFORMER_LIB ?= $(or $(FOUND),$(error no libiceformer.a below $(PREFIX)/lib: name it by ICEFORMER_LIB))
endif
INCLUDES = -I$(INCLUDE)

CARGO ?= cargo
# A relative CARGO_TARGET_DIR counts from the folder cargo runs in, which is the workspace.
CARGO_TARGET_DIR ?= target

ifdef ICEFORMER_LIB
library:
else
ICEFORMER_LIB = $(if $(filter /%,$(CARGO_TARGET_DIR)),$(CARGO_TARGET_DIR),$(ROOT)/$(CARGO_TARGET_DIR))/release/libiceformer.a
# cargo knows best whether there is something to do.
library:
	cd $(ROOT) && CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)" $(CARGO) build --release -p iceformer-ffi
$(ICEFORMER_LIB): library ;
endif
