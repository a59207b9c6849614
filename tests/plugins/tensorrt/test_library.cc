// What the library shows of itself.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

#include "example.h"
#include "op_table.generated.h"

namespace bertfuse::test::tensorrt {
namespace {

// The names of the symbols that a shared library defines for others.
std::set<std::string> Exports(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto at = [&](size_t offset) { return bytes.data() + offset; };
  Elf64_Ehdr header;
  std::memcpy(&header, at(0), sizeof(header));
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), at(header.e_shoff), sections.size() * sizeof(Elf64_Shdr));
  std::set<std::string> names;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNSYM) continue;
    for (size_t offset = 0; offset < section.sh_size; offset += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, at(section.sh_offset + offset), sizeof(symbol));
      if (symbol.st_shndx != SHN_UNDEF) names.insert(at(sections[section.sh_link].sh_offset + symbol.st_name));
    }
  }
  return names;
}

TEST(Library, ExportsItsEntryPointsOnly) {
  EXPECT_EQ(Exports(BERTFUSE_TRT_LIBRARY),
            (std::set<std::string>{"getCreators", "getPluginCreators", "setLoggerFinder"}));
}

TEST(Library, HasACreatorOfEveryOp) {
  Host host(BERTFUSE_TRT_LIBRARY);
  ASSERT_EQ(host.creators().size(), static_cast<size_t>(AllOps().count));
  for (const OpDef& op : AllOps()) {
    SCOPED_TRACE(op.name);
    auto& creator = host.Creator(op.name);
    EXPECT_EQ(creator.getAPILanguage(), abi::APILanguage::kCPP);
    EXPECT_STREQ(creator.getPluginVersion(), kPluginVersion);
    EXPECT_STREQ(creator.getPluginNamespace(), kDomain);
    const abi::PluginFieldCollection* fields = creator.getFieldNames();
    ASSERT_NE(fields, nullptr);
    const std::vector<std::string> of_layers = {"constant_inputs", "element_type", "given_inputs", "weight_type",
                                                "result_type"};
    ASSERT_EQ(fields->nbFields, op.num_attributes + static_cast<int32_t>(of_layers.size()));
    for (size_t i = 0; i < of_layers.size(); ++i) EXPECT_EQ(fields->fields[op.num_attributes + i].name, of_layers[i]);
    for (int i = 0; i < op.num_attributes; ++i) EXPECT_STREQ(fields->fields[i].name, op.attributes[i].name);
  }
}

TEST(Library, GivesTheSameCreatorsEachTime) {
  Host first(BERTFUSE_TRT_LIBRARY), second(BERTFUSE_TRT_LIBRARY);
  EXPECT_EQ(first.creators(), second.creators());
}

TEST(Library, CapabilitiesNameTheirInterfaces) {
  Host host(BERTFUSE_TRT_LIBRARY);
  const Example example(*FindOp("FusedGemmGelu"), 7, BERTFUSE_FLOAT32, BERTFUSE_INT32);
  const PluginPointer plugin(
      host.Creator("FusedGemmGelu").createPlugin("l", &example.fields.collection(), abi::TensorRTPhase::kBUILD));
  ASSERT_NE(plugin, nullptr);
  EXPECT_STREQ(plugin->getInterfaceInfo().kind, "PLUGIN");
  const char* kinds[] = {"PLUGIN_V3ONE_CORE", "PLUGIN_V3ONE_BUILD", "PLUGIN_V3ONE_RUNTIME"};
  for (int i = 0; i < 3; ++i) {
    const abi::InterfaceInfo info =
        plugin->getCapabilityInterface(static_cast<abi::PluginCapabilityType>(i))->getInterfaceInfo();
    EXPECT_STREQ(info.kind, kinds[i]);
    EXPECT_EQ(info.major, 1);
    EXPECT_EQ(info.minor, 0);
  }
}

TEST(Library, StaysForLayersThatOutliveItsHandle) {
  const Example example(*FindOp("FusedGemmGelu"), 7, BERTFUSE_FLOAT32, BERTFUSE_INT32);
  PluginPointer plugin;
  {
    Host host(BERTFUSE_TRT_LIBRARY);
    auto& creator = host.Creator("FusedGemmGelu");
    plugin.reset(creator.createPlugin("l", &example.fields.collection(), abi::TensorRTPhase::kBUILD));
  }
  ASSERT_NE(plugin, nullptr);
  const PluginPointer copy(plugin->clone());
  const auto& core = CapabilityOf<abi::IPluginV3OneCore>(*copy, abi::PluginCapabilityType::kCORE);
  EXPECT_STREQ(core.getPluginName(), "FusedGemmGelu");
}

}  // namespace
}  // namespace bertfuse::test::tensorrt
